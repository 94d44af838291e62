#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/device.h"
#include "kernels/device_collective.h"

namespace percheron {

/// Where the CUDA backend is looked for: libpercheron_cuda.so in PREFIX/lib/percheron of a program
/// that is installed as PREFIX/bin/percheron, else beside the running program.
std::string cuda_plugin_path();

/// Opens the device cuda:N through the backend at `path`, which stays loaded from then on.
/// kNotFound says in one line what is missing: the file, a library of CUDA's, the driver, or the
/// card.
Result<std::unique_ptr<Device>> open_cuda_device(DeviceId id, const DeviceOptions& options,
                                                 const std::string& path);

/// Connects GPUs by NCCL through the backend at `path`. kNotFound as open_cuda_device(), or that
/// there is no NCCL; kUnavailable if it does not connect.
Result<DeviceCollectives> open_cuda_collectives(std::span<const DeviceId> devices,
                                                const DeviceCollectiveOptions& options,
                                                const std::string& path);

}  // namespace percheron
