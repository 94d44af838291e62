#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "data/length_buckets.h"

namespace percheron {

/// The argument that says which samples' lengths a command reads, as read_lengths() takes them.
CLI::Option* add_lengths_argument(CLI::App& command, std::string& lengths);

/// --token-budget, --max-batch and --buckets, with what the variables hold as defaults.
void add_batch_options(CLI::App& command, BatchLimits& limits, int64_t& buckets);

}  // namespace percheron
