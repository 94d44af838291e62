#pragma once

#include <memory>

#include "kernels/device.h"

namespace percheron::cuda {

/// The CUDA device of this number. kNotFound if there is no driver, if it is too old, if there are
/// fewer devices, or if this build has no code for this one.
Result<std::unique_ptr<Device>> make_cuda_device(DeviceId id, const DeviceOptions& options);

/// kNotFound says why there is no such device.
Status check_cuda_device(DeviceId id);

}  // namespace percheron::cuda
