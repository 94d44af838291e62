// The percheron program: one binary, one subcommand per verb.

#include <CLI/CLI.hpp>
#include <cstdio>

#include "tools/commands.h"
#include "tools/printer.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Percheron trains the small drafter models that make serving a large language model faster."};
  app.set_version_flag("--version", std::string("percheron " PERCHERON_VERSION));
  app.require_subcommand(1);
  app.footer("percheron COMMAND --help explains each command.");
  percheron::Command chosen;
  percheron::add_train_command(app, chosen);
  percheron::add_generate_command(app, chosen);
  percheron::add_evaluate_command(app, chosen);
  percheron::add_export_command(app, chosen);
  percheron::add_inspect_command(app, chosen);
  percheron::add_prepare_command(app, chosen);
  CLI11_PARSE(app, argc, argv);
  const percheron::Status status = chosen();
  if (status.ok()) return 0;
  percheron::Printer(stderr).print("error: {}\n", status.message());
  return 1;
}
