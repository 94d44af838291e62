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

/// Errors name the key and its value: a device of no known kind, a number out of its range, devices
/// that can't hold a target together.
Result<PlacementPlan> resolve_placement(const proto::Placement& given);

}  // namespace percheron
