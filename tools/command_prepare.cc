#include "tools/commands.h"

namespace percheron {

void add_prepare_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("prepare",
                                         "Make token shards with loss masks from chats "
                                         "(`percheron prepare --help` lists the options)");
  pass_to_python(*command, chosen);
}

}  // namespace percheron
