#pragma once

#include <memory>

#include "kernels/device.h"

namespace percheron {

/// The host's processor. `id.index` is logical: devices differ only in whose threads they use.
/// kInvalidArgument if PERCHERON_CPU_ISA names an instruction set that is unknown or not there.
Result<std::unique_ptr<Device>> make_cpu_device(DeviceId id, const DeviceOptions& options);

}  // namespace percheron
