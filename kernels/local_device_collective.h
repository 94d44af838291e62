#pragma once

#include "kernels/device_collective.h"

namespace percheron {

/// As Device::copy_bytes() of the device that the stream is of.
using DeviceCopy = void (*)(Stream& stream, void* destination, const void* source, size_t bytes);

/// A group of `size` ranks whose sums the host adds, in rank order. A device's error ends the whole
/// group. `copy`: null where the host may touch the devices' memory (cpu:N); else values go through
/// host memory by it, in the order of the stream (emulated:N): wait for the stream before the group
/// goes.
DeviceCollectives make_local_device_collectives(int size, const DeviceCollectiveOptions& options,
                                                DeviceCopy copy = nullptr);

}  // namespace percheron
