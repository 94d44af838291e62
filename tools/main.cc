// The percheron program: one binary, one subcommand per verb.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "base/nearest_name.h"
#include "tools/commands.h"
#include "tools/printer.h"

namespace percheron {
namespace {

constexpr int kFailed = 1;
constexpr int kMisused = 2;  // the command line was not understood

int fail(const std::string& message, int exit_code) {
  Printer(stderr).print("error: {}\n", message);
  return exit_code;
}

/// What is wrong with the command's name, before CLI11 sees it; empty if nothing is.
std::string unknown_command(CLI::App& app, std::string_view name) {
  if (name.starts_with("-")) return {};
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    if (command->get_name() == name) return {};
    if (!command->get_group().empty()) names.push_back(command->get_name());  // not a hidden one
  }
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  const std::string_view meant = nearest_name(name, candidates);
  return "unknown command '" + std::string(name) + "'; " +
         (meant.empty() ? "percheron --help lists the commands"
                        : "did you mean '" + std::string(meant) + "'?");
}

int run(int argc, char** argv) {
  CLI::App app{
      "Percheron trains the small drafter models that make serving a large language model faster.",
      "percheron"};
  app.set_version_flag("--version", std::string("percheron " PERCHERON_VERSION));
  app.require_subcommand(1);
  app.footer("percheron COMMAND --help explains each command.");
  Command chosen;
  add_train_command(app, chosen);
  add_node_command(app, chosen);
  add_run_commands(app, chosen);
  add_top_command(app, chosen);
  add_process_commands(app, chosen);
  add_capture_command(app, chosen);
  add_generate_command(app, chosen);
  add_evaluate_command(app, chosen);
  add_export_command(app, chosen);
  add_inspect_command(app, chosen);
  add_answer_command(app, chosen);
  add_python_command(app, chosen, "prepare", "Make token shards with loss masks from chats");
  add_python_command(app, chosen, "doctor", "Say what is wrong with chats or token shards");
  add_python_command(app, chosen, "regenerate", "Replace the answers of chats by the target's own");
  add_buckets_command(app, chosen);
  add_plan_command(app, chosen);
  add_certs_command(app, chosen);
  if (argc < 2) {
    Printer(stderr).write(app.help());
    return kMisused;
  }
  if (const std::string wrong = unknown_command(app, argv[1]); !wrong.empty()) {
    return fail(wrong, kMisused);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const std::string command = argv[1];
    return fail(std::string(error.what()) + "; percheron " +
                    (command.starts_with("-") ? "" : command + " ") + "--help lists the options",
                kMisused);
  }
  const Status status = chosen();
  return status.ok() ? 0 : fail(std::string(status.message()), kFailed);
}

}  // namespace
}  // namespace percheron

int main(int argc, char** argv) { return percheron::run(argc, argv); }
