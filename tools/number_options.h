#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace percheron {

/// Refuses an option's number below `least`, naming both. CLI11's own checks print the largest
/// double, digit by digit.
CLI::Validator at_least(int64_t least);

/// Refuses an option's number outside [low, high], naming all three.
CLI::Validator in_range(int64_t low, int64_t high);

/// What `text`, given for `option`, says in bytes: "512MiB". kInvalidArgument unless above 0.
Result<uint64_t> byte_count(const char* option, const std::string& text);

}  // namespace percheron
