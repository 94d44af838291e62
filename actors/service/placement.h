#pragma once

#include <map>
#include <string>
#include <vector>

#include "actors/placement_plan.h"
#include "base/status.h"
#include "kernels/device.h"
#include "proto/run.pb.h"

namespace percheron {

/// What an actor or a process of a run has of a cluster: a device, or those of one node that hold a
/// target together.
struct PlacedDevices {
  std::string node;
  std::vector<DeviceId> devices;  // rank 0 first; never empty

  auto operator<=>(const PlacedDevices&) const = default;
  /// Whether they have a device in common.
  bool overlaps(const PlacedDevices& other) const;
  std::string device_text() const { return to_string(devices); }  // "cuda:0+1"
  std::string text() const { return node + "/" + to_string(devices); }
  /// Each device by itself: "node/cuda:0", "node/cuda:1".
  std::vector<std::string> device_texts() const;
};

/// Where the actors of a run live in a cluster.
struct ClusterPlacement {
  std::vector<PlacedDevices> targets;   // one actor each, all on as many devices
  std::vector<PlacedDevices> trainers;  // one actor each, on one device

  /// What a process runs: the numbers of its actors.
  struct Roles {
    std::vector<int> targets;
    std::map<int, DeviceId> trainers;  // with the device of each
    bool empty() const { return targets.empty() && trainers.empty(); }
    std::string text() const;  // "target 0, trainer 1"
  };
  /// The processes, by their devices, of which each is in one.
  std::map<PlacedDevices, Roles> workers() const;
  /// The process of a trainer: that of a target on several devices, where it shares one of them.
  const PlacedDevices& process_of(const PlacedDevices& trainer) const;
  /// Every node, once, in order.
  std::vector<std::string> nodes() const;
  /// CPU devices of `node`, which share its cores.
  int cpu_devices(const std::string& node) const;
};

/// Reads placement.targets and placement.trainers: "cpu:0" is a device of `own_node`,
/// "nodeB/cuda:0-3" are four devices of nodeB, of which placement.tensor_parallel, one after the
/// other, hold a target together; "nodeB/cuda:0+1" is such a group. Default: cpu:0 of `own_node`.
/// kInvalidArgument names the key and the value: a group of several nodes or kinds is one.
Result<ClusterPlacement> read_placement(const proto::Run& run, const std::string& own_node);

/// The devices of `entries` of placement.`key`, as read_placement() reads them; at least one entry.
/// They come in groups of `size`, or as errors that say why not.
Result<std::vector<PlacedDevices>> read_devices(const char* key,
                                                const std::vector<std::string>& entries,
                                                const std::string& own_node, size_t size);

/// kInvalidArgument where a device would hold parts of two targets.
Status check_groups(const std::vector<PlacedDevices>& targets);

/// kInvalidArgument where trainers are on several nodes and cluster.trusted_network is not true.
Status check_trainer_nodes(const proto::Run& run, const ClusterPlacement& placement);

/// `run` with its placement as one process knows it: devices without nodes, and of each target the
/// first alone, as several nodes may have devices of one name.
proto::Run without_nodes(const proto::Run& run, const ClusterPlacement& placement);

}  // namespace percheron
