#pragma once

#include <cstddef>
#include <memory>

#include "kernels/device.h"

namespace percheron {

/// A device that only counts: its operations do nothing and its memory is address space that nobody
/// may touch. Running a model's own code on it tells how much memory the model would take.
std::unique_ptr<Device> make_planning_device(DeviceId id, const DeviceOptions& options);

/// The most bytes that were allocated at one time on `device`, which must be a planning device.
/// Scratch that operations take for themselves is counted where CUDA is planned for (in builds with
/// an emulator); the processor's is not: it is small.
size_t planned_bytes(const Device& device);
/// The same of allocate_host().
size_t planned_host_bytes(const Device& device);

}  // namespace percheron
