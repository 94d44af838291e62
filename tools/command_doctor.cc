#include "tools/commands.h"

namespace percheron {

void add_doctor_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("doctor",
                                         "Say what is wrong with chats or token shards "
                                         "(`percheron doctor --help` lists the options)");
  pass_to_python(*command, chosen);
}

}  // namespace percheron
