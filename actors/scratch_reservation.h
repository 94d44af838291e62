#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/device_worker.h"
#include "actors/run_setup.h"
#include "base/file_system.h"
#include "base/status.h"
#include "model/target_files.h"

namespace percheron {

/// Plans what every device of `setup.placement` will hold and, before anything is loaded, gives the
/// workers of GPUs (and emulated ones) the scratch memory of their steps in one piece, so that no
/// step gets or frees memory. Returns a line on each for the run's log. kResourceExhausted names
/// the device whose free memory is less than planned, with both numbers and what to change. A
/// processor's scratch is the host's memory, which is had at no cost when it is first touched:
/// nothing is planned or reserved for it.
Result<std::vector<std::string>> reserve_scratch(std::shared_ptr<const RunSetup> setup,
                                                 FileSystem& files,
                                                 std::shared_ptr<const TargetFiles> target,
                                                 std::span<DeviceWorker* const> workers);

}  // namespace percheron
