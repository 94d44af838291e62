#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/file_system.h"
#include "base/status.h"

namespace percheron {

/// Who decides for a run, as a file of its output says, which all nodes of the run share. A run
/// that goes to another node has a later generation there; the one before must not write any more.
struct RunOwner {
  int64_t generation = 0;
  std::string node;
};

/// None where nobody has written it. kDataLoss for a file that can't be read.
Result<std::optional<RunOwner>> read_run_owner(FileSystem& files, const std::string& output);
/// Makes `self` the owner; whether it was not before. Errors as check_run_owner().
Result<bool> own_run(FileSystem& files, const std::string& output, const RunOwner& self);
/// kFailedPrecondition, naming its node, when a later generation has the run, or another node has
/// it in the same one.
Status check_run_owner(FileSystem& files, const std::string& output, const RunOwner& self);

}  // namespace percheron
