#pragma once

#include <cstdint>
#include <string>

#include "base/file_system.h"

namespace percheron {

/// The plan's line about time: how long `steps` steps take at the rate that an earlier start of the
/// run recorded in `directory`/metrics.jsonl, or that the rate will be measured.
std::string plan_time(FileSystem& files, const std::string& directory, int64_t steps);

}  // namespace percheron
