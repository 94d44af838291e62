#include "kernels/cuda/plugin.h"

#include "base/clock.h"
#include "kernels/cuda/plugin/cuda_device.h"
#ifdef PERCHERON_NCCL
#include "kernels/cuda/nccl_collective.h"
#include "kernels/cuda/plugin/nccl_library.h"
#endif

namespace percheron::cuda {
namespace {

Result<DeviceCollectives> connect(std::span<const DeviceId> devices,
                                  const DeviceCollectiveOptions& options) {
#ifdef PERCHERON_NCCL
  // Before NCCL is looked for, so that a missing GPU is told as what it is.
  for (const DeviceId id : devices) PERCHERON_RETURN_IF_ERROR(check_cuda_device(id));
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

}  // namespace
}  // namespace percheron::cuda

extern "C" {

__attribute__((visibility("default"))) int percheron_cuda_abi() {
  return percheron::cuda::kPluginAbi;
}

__attribute__((visibility("default"))) void percheron_cuda_open(
    percheron::DeviceId id, const percheron::DeviceOptions& options,
    percheron::Result<std::unique_ptr<percheron::Device>>* device) {
  *device = percheron::cuda::make_cuda_device(id, options);
}

__attribute__((visibility("default"))) void percheron_cuda_connect(
    std::span<const percheron::DeviceId> devices, const percheron::DeviceCollectiveOptions& options,
    percheron::Result<percheron::DeviceCollectives>* collectives) {
  *collectives = percheron::cuda::connect(devices, options);
}

}  // extern "C"
