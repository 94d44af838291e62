#pragma once

#include <memory>

#include "kernels/device.h"

namespace percheron {

/// A device that runs the CUDA kernels on the processor, through the emulator: for tests, and to
/// try a run's device path without a GPU. Many times slower than the CPU device. kNotFound where
/// the emulator is not built.
Result<std::unique_ptr<Device>> make_emulated_device(DeviceId id, const DeviceOptions& options);

}  // namespace percheron
