#pragma once

#include "kernels/device_collective.h"

namespace percheron {

/// A group of `size` ranks whose device memory is the host's (cpu:N, emulated:N). Sums are in rank
/// order. A device's error ends the whole group.
DeviceCollectives make_local_device_collectives(int size, const DeviceCollectiveOptions& options);

}  // namespace percheron
