#pragma once

#include <string>

namespace percheron {

/// What a run of the program left: its exit code, and standard output and error together.
struct ProgramResult {
  int exit_code = -1;
  std::string output;
};

/// Runs a shell's command line and waits for it.
ProgramResult run_command(const std::string& command);

/// Runs the percheron program with `arguments`, a shell's words, and waits for it.
ProgramResult run_program(const std::string& arguments);

}  // namespace percheron
