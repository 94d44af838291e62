#pragma once

#include <functional>
#include <memory>

#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/plugin/cuda_runtime.h"
#include "kernels/cuda/products.h"
#include "kernels/device.h"

namespace percheron::cuda {

/// NVIDIA's libraries above the runtime, each opened for the current device.
struct Libraries {
  std::function<Result<std::unique_ptr<MatrixProducts>>()> make_products;
  /// Called when DeviceOptions ask for it and an operation first needs it.
  std::function<Result<std::unique_ptr<AttentionLibrary>>()> open_attention;
};

/// The CUDA device of this number. kNotFound if there is no driver, if it is too old, if there are
/// fewer devices, or if this build has no code for this one; kResourceExhausted if others have left
/// no memory on it.
Result<std::unique_ptr<Device>> make_cuda_device(DeviceId id, const DeviceOptions& options,
                                                 std::unique_ptr<Runtime> runtime,
                                                 const Libraries& libraries);

}  // namespace percheron::cuda
