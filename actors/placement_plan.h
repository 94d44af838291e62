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

  /// Every device in use, once, in order.
  std::vector<DeviceId> devices() const;
  /// The devices of each target actor, rank 0 first.
  std::vector<std::vector<DeviceId>> target_groups() const;
  /// How each device is opened.
  DeviceOptions device_options() const { return {threads, attention}; }
};

/// "cuda:0+cuda:1", for messages.
std::string to_string(const std::vector<DeviceId>& group);

/// placement.devices and the two that it stands for are not given together.
Status check_devices(const proto::Placement& given);
/// How placement.devices begins: the first half, rounded up, are targets, the others trainers; one
/// device alone is both.
template <class Device>
void split_devices(const std::vector<Device>& devices, std::vector<Device>& targets,
                   std::vector<Device>& trainers) {
  const auto half = devices.begin() + static_cast<std::ptrdiff_t>((devices.size() + 1) / 2);
  targets.assign(devices.begin(), half);
  trainers.assign(devices.size() == 1 ? devices.begin() : half, devices.end());
}

/// Errors name the key and its value: a device of no known kind, a number out of its range, devices
/// that can't hold a target together.
Result<PlacementPlan> resolve_placement(const proto::Placement& given);

}  // namespace percheron
