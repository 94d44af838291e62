#include "kernels/cuda/plugin.h"

#include <dlfcn.h>

#include <string>

#include "base/clock.h"
#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/plugin/cublas_products.h"
#include "kernels/cuda/plugin/cuda_card.h"
#include "kernels/cuda/plugin/cuda_device.h"
#include "kernels/cuda/plugin/nvidia_runtime.h"
#ifdef PERCHERON_NCCL
#include "kernels/cuda/nccl_collective.h"
#include "kernels/cuda/plugin/nccl_library.h"
#endif

namespace percheron::cuda {
namespace {

/// libpercheron_cudnn.so beside the library that this code is in.
std::string attention_library_path() {
  Dl_info info{};
  const auto here = reinterpret_cast<void*>(&attention_library_path);
  const std::string path =
      dladdr(here, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
  return path.substr(0, path.rfind('/') + 1) + "libpercheron_cudnn.so";
}

Libraries nvidia_libraries() {
  return {.make_products = make_cublas_products,
          .open_attention = [] { return load_attention_library(attention_library_path()); }};
}

Result<DeviceCollectives> connect(std::span<const DeviceId> devices,
                                  const DeviceCollectiveOptions& options) {
#ifdef PERCHERON_NCCL
  // Before NCCL is looked for, so that a missing GPU is told as what it is.
  for (const DeviceId id : devices) {
    PERCHERON_RETURN_IF_ERROR(CudaCard(id, make_nvidia_runtime()).check_exists());
  }
  PERCHERON_ASSIGN_OR_RETURN(std::shared_ptr<NcclCalls> nccl, open_nccl());
  return make_nccl_collectives(std::move(nccl), system_clock(), devices, options);
#else
  (void)options;
  return not_found(
      to_string(devices.front()) +
      " can't sum with other GPUs: this build has no NCCL, whose header was not beside "
      "CUDA's");
#endif
}

Result<std::unique_ptr<Device>> open(DeviceId id, const DeviceOptions& options) {
  return make_cuda_device(id, options, make_nvidia_runtime(), nvidia_libraries());
}

}  // namespace
}  // namespace percheron::cuda

extern "C" {

__attribute__((visibility("default"))) int percheron_cuda_abi() {
  return percheron::cuda::kPluginAbi;
}

__attribute__((visibility("default"))) void percheron_cuda_open(
    percheron::DeviceId id, const percheron::DeviceOptions& options,
    percheron::Result<std::unique_ptr<percheron::Device>>* device) {
  *device = percheron::cuda::open(id, options);
}

__attribute__((visibility("default"))) void percheron_cuda_connect(
    std::span<const percheron::DeviceId> devices, const percheron::DeviceCollectiveOptions& options,
    percheron::Result<percheron::DeviceCollectives>* collectives) {
  *collectives = percheron::cuda::connect(devices, options);
}

}  // extern "C"
