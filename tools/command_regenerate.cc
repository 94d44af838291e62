#include "tools/commands.h"

namespace percheron {

void add_regenerate_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("regenerate",
                                         "Replace the answers of chats by the target's own "
                                         "(`percheron regenerate --help` lists the options)");
  pass_to_python(*command, chosen);
}

}  // namespace percheron
