#pragma once

#include <memory>
#include <span>

#include "kernels/device.h"
#include "kernels/device_collective.h"

/// What libpercheron_cuda.so exports. It is built from the same sources as the program and shares
/// its C++ classes with it, so a plug-in of another version must not be used: its number is asked
/// first.
namespace percheron::cuda {

/// To be raised whenever Device, Ops, DeviceCollective or a class that they take or return changes.
constexpr int kPluginAbi = 6;

/// Returns kPluginAbi of the plug-in's sources.
using PluginAbi = int();
constexpr const char* kPluginAbiName = "percheron_cuda_abi";

/// Opens the device, as open_device(), into *device.
using PluginOpen = void(DeviceId id, const DeviceOptions& options,
                        Result<std::unique_ptr<Device>>* device);
constexpr const char* kPluginOpenName = "percheron_cuda_open";

/// Connects a group of GPUs, as make_device_collectives(), into *collectives.
using PluginConnect = void(std::span<const DeviceId> devices,
                           const DeviceCollectiveOptions& options,
                           Result<DeviceCollectives>* collectives);
constexpr const char* kPluginConnectName = "percheron_cuda_connect";

}  // namespace percheron::cuda
