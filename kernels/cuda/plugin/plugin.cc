#include "kernels/cuda/plugin.h"

#include "kernels/cuda/plugin/cuda_device.h"

extern "C" {

__attribute__((visibility("default"))) int percheron_cuda_abi() {
  return percheron::cuda::kPluginAbi;
}

__attribute__((visibility("default"))) void percheron_cuda_open(
    percheron::DeviceId id, const percheron::DeviceOptions& options,
    percheron::Result<std::unique_ptr<percheron::Device>>* device) {
  *device = percheron::cuda::make_cuda_device(id, options);
}

}  // extern "C"
