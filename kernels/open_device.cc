#include <string>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/emulated_device.h"
#include "kernels/cuda/plugin_loader.h"
#include "kernels/device.h"
#include "kernels/planning_device.h"

namespace percheron {
namespace {

/// cpu:N and emulated:N are logical.
constexpr int kLogicalDevicesMax = 256;

Result<std::unique_ptr<Device>> open(DeviceId id, const DeviceOptions& options) {
  switch (id.kind) {
    case DeviceKind::kCpu:
      if (id.index < kLogicalDevicesMax) return make_cpu_device(id, options);
      break;
    case DeviceKind::kPlanning: return make_planning_device(id, options);
    case DeviceKind::kEmulated:
#ifdef PERCHERON_EMULATOR
      if (id.index < kLogicalDevicesMax) return make_emulated_device(id, options);
      break;
#else
      return not_found("there is no device " + to_string(id) +
                       ": this build has no emulator, which needs an x86-64 processor");
#endif
    case DeviceKind::kCuda: return open_cuda_device(id, options, cuda_plugin_path());
  }
  return not_found("there is no device " + to_string(id));
}

}  // namespace

Result<std::unique_ptr<Device>> open_device(DeviceId id, const DeviceOptions& options) {
  Result<std::unique_ptr<Device>> device = open(id, options);
  if (device.ok() || device.status().code() != StatusCode::kNotFound) return device;
  return not_found(device.status().message() +
                   "; there are cpu:0 to cpu:" + std::to_string(kLogicalDevicesMax - 1));
}

}  // namespace percheron
