#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/device.h"
#include "proto/run.pb.h"

namespace percheron {

/// A device of a cluster.
struct PlacedDevice {
  std::string node;
  DeviceId device;

  auto operator<=>(const PlacedDevice&) const = default;
  std::string text() const { return node + "/" + to_string(device); }
};

/// Where the actors of a run live in a cluster.
struct ClusterPlacement {
  std::vector<PlacedDevice> targets, trainers;  // one actor each

  /// What the process of one device runs: the numbers of its actors.
  struct Roles {
    std::vector<int> targets, trainers;
    std::string text() const;  // "target 0, trainer 1"
  };
  std::map<PlacedDevice, Roles> workers() const;
  /// Every node, once, in order.
  std::vector<std::string> nodes() const;
  /// CPU devices of `node`, which share its cores.
  int cpu_devices(const std::string& node) const;
};

/// Reads placement.targets and placement.trainers: "cpu:0" is a device of `own_node`,
/// "nodeB/cuda:0-3" are four devices of nodeB. Default: cpu:0 of `own_node`. kInvalidArgument names
/// the key and the value; a placement.tensor_parallel other than 1 is one.
Result<ClusterPlacement> read_placement(const proto::Run& run, const std::string& own_node);

/// The devices of `entries` of placement.`key`, as read_placement() reads them; at least one entry.
Result<std::vector<PlacedDevice>> read_devices(const char* key,
                                               const std::vector<std::string>& entries,
                                               const std::string& own_node);

/// kInvalidArgument where trainers are on several nodes and cluster.trusted_network is not true.
Status check_trainer_nodes(const proto::Run& run, const ClusterPlacement& placement);

/// `run` with its placement as one process knows it: devices without nodes.
proto::Run without_nodes(const proto::Run& run, const ClusterPlacement& placement);

}  // namespace percheron
