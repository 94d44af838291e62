#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "base/status.h"

namespace percheron {

/// What a subcommand leaves behind when its arguments have been read: the work to do.
using Command = std::function<Status()>;

void add_buckets_command(CLI::App& app, Command& chosen);
void add_certs_command(CLI::App& app, Command& chosen);
void add_plan_command(CLI::App& app, Command& chosen);
void add_capture_command(CLI::App& app, Command& chosen);
void add_train_command(CLI::App& app, Command& chosen);
void add_generate_command(CLI::App& app, Command& chosen);
void add_evaluate_command(CLI::App& app, Command& chosen);
void add_export_command(CLI::App& app, Command& chosen);
void add_inspect_command(CLI::App& app, Command& chosen);
void add_answer_command(CLI::App& app, Command& chosen);
void add_node_command(CLI::App& app, Command& chosen);
/// submit, status, pause, resume, snapshot, stop, logs.
void add_run_commands(CLI::App& app, Command& chosen);
void add_top_command(CLI::App& app, Command& chosen);
void add_process_commands(CLI::App& app, Command& chosen);

/// A subcommand whose work the Python program of its name does, with all arguments after it.
void add_python_command(CLI::App& app, Command& chosen, const std::string& name,
                        const std::string& description);

}  // namespace percheron
