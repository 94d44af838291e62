#pragma once

#include <memory>

#include "kernels/device.h"

namespace percheron {

/// A device that runs the CUDA kernels on the processor, through the emulator: for tests, and to
/// try a run's device path without a GPU. Many times slower than the CPU device. kNotFound where
/// the emulator is not built.
Result<std::unique_ptr<Device>> make_emulated_device(DeviceId id, const DeviceOptions& options);

/// As Device::copy_bytes() of the emulated device that `stream` is of.
void copy_emulated(Stream& stream, void* destination, const void* source, size_t bytes);

}  // namespace percheron
