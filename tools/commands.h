#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/status.h"

namespace percheron {

/// What a subcommand leaves behind when its arguments have been read: the work to do.
using Command = std::function<Status()>;

void add_buckets_command(CLI::App& app, Command& chosen);
void add_plan_command(CLI::App& app, Command& chosen);
void add_capture_command(CLI::App& app, Command& chosen);
void add_train_command(CLI::App& app, Command& chosen);
void add_generate_command(CLI::App& app, Command& chosen);
void add_evaluate_command(CLI::App& app, Command& chosen);
void add_export_command(CLI::App& app, Command& chosen);
void add_inspect_command(CLI::App& app, Command& chosen);
void add_prepare_command(CLI::App& app, Command& chosen);
void add_doctor_command(CLI::App& app, Command& chosen);
void add_regenerate_command(CLI::App& app, Command& chosen);
void add_answer_command(CLI::App& app, Command& chosen);

/// Makes the Python program of the command's name do the work, with all of its arguments.
void pass_to_python(CLI::App& command, Command& chosen);

}  // namespace percheron
