#include <string>
#include <vector>

#include "tools/commands.h"
#include "tools/python_environment.h"

namespace percheron {

void add_python_command(CLI::App& app, Command& chosen, const std::string& name,
                        const std::string& description) {
  CLI::App* command = app.add_subcommand(
      name, description + " (`percheron " + name + " --help` lists the options)");
  command->prefix_command();  // Everything after the verb is the Python program's.
  command->set_help_flag();
  command->callback([command, &chosen] {
    chosen = [name = command->get_name(), arguments = command->remaining()]() -> Status {
      PERCHERON_ASSIGN_OR_RETURN(const PythonEnvironment python, find_python_environment());
      std::vector<std::string> all{name};
      all.insert(all.end(), arguments.begin(), arguments.end());
      return exec_python(python, all);
    };
  });
}

}  // namespace percheron
