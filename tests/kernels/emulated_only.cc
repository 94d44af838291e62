// Opens emulated devices alone, for test programs that must not load OpenMP.

#include "kernels/cuda/emulated_device.h"
#include "kernels/device.h"

namespace percheron {

Result<std::unique_ptr<Device>> open_device(DeviceId id, const DeviceOptions& options) {
  return make_emulated_device(id, options);
}

}  // namespace percheron
