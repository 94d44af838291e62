#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/device.h"
#include "proto/run.pb.h"

namespace percheron {

/// Where the actors of a run compute.
struct PlacementPlan {
  std::vector<DeviceId> targets;   // a device may occur several times where tensor_parallel is 1
  std::vector<DeviceId> trainers;  // one actor each; a device may occur several times
  int threads = 1;                 // cores of each CPU device
  int tensor_parallel = 1;         // consecutive devices of `targets` that hold one target together
  AttentionKernel attention = AttentionKernel::kOwn;
  bool graphs = true;  // placement.cuda_graphs

  /// Every device in use, once, in order.
  std::vector<DeviceId> devices() const;
  /// The devices of each target actor, rank 0 first.
  std::vector<std::vector<DeviceId>> target_groups() const;
  /// How each device is opened.
  DeviceOptions device_options() const { return {threads, attention, graphs}; }
};

/// "cuda:0+1", for messages and as a place of a service.
std::string to_string(const std::vector<DeviceId>& group);
/// Reads what to_string() writes of devices of one kind. kInvalidArgument names the value.
Result<std::vector<DeviceId>> parse_device_group(const std::string& text);

/// placement.tensor_parallel is a number of devices, and placement.devices and the two that it
/// stands for are not given together.
Status check_devices(const proto::Placement& given);
/// kInvalidArgument where so many placement.devices would leave none for a trainer.
Status check_split(size_t devices, size_t devices_per_target);
/// How placement.devices begins: the first half, rounded up to whole targets, are targets, the
/// others trainers; one device alone is both. Errors as check_split().
template <class Device>
Status split_devices(const std::vector<Device>& devices, size_t devices_per_target,
                     std::vector<Device>& targets, std::vector<Device>& trainers) {
  PERCHERON_RETURN_IF_ERROR(check_split(devices.size(), devices_per_target));
  const size_t half = (devices.size() + 1) / 2 + devices_per_target - 1;
  const auto first_trainer =
      devices.begin() + static_cast<std::ptrdiff_t>(half - half % devices_per_target);
  targets.assign(devices.begin(), first_trainer);
  trainers.assign(devices.size() == 1 ? devices.begin() : first_trainer, devices.end());
  return ok_status();
}

/// Errors name the key and its value: a device of no known kind, a number out of its range, devices
/// that can't hold a target together.
Result<PlacementPlan> resolve_placement(const proto::Placement& given);

}  // namespace percheron
