#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/policy/worker_roll.h"
#include "actors/service/placement.h"
#include "base/status.h"
#include "proto/control.pb.h"

namespace percheron {

/// Devices that a run's targets and trainers get or lose.
struct PlacementChange {
  std::vector<PlacedDevices> add_targets, remove_targets, add_trainers, remove_trainers;
};

/// Reads what an operator wants; "cpu:0" is a device of `own_node`, and targets are whole ones, on
/// placement.tensor_parallel devices of `run`. kInvalidArgument names the value.
Result<PlacementChange> read_change(const proto::ScaleRun& order, const std::string& own_node,
                                    const proto::Run& run);

/// The placement after a change; `now` where all of it is so already. kFailedPrecondition and one
/// sentence where it can't be: a device that has the role already or has it not, no target or
/// trainer left, what `run` says of its trainers.
Result<ClusterPlacement> change_placement(const ClusterPlacement& now,
                                          const PlacementChange& change, const proto::Run& run);

/// Each device by itself, with its node, as a configuration names them.
std::vector<std::string> device_texts(const std::vector<PlacedDevices>& placed);
/// `run` with this placement, each device with its node.
void set_placement(const ClusterPlacement& placement, proto::Run& run);

/// The workers of a run by their numbers, while devices come and go. Numbers only grow: nobody gets
/// that of one that is gone.
class WorkerPlaces {
 public:
  using Roles = ClusterPlacement::Roles;
  using Devices = std::map<PlacedDevices, Roles>;  // processes

  explicit WorkerPlaces(const ClusterPlacement& placement);

  /// How a run comes to another placement. A process has the same devices and roles all its life,
  /// but for roles that it loses.
  struct Plan {
    Devices fresh;    // have no device of the run: they are started before anybody leaves
    Devices retired;  // these numbers leave
    std::set<PlacedDevices> ended;  // their processes end
    Devices moved;                  // begin anew, on devices of `ended`, after that
  };
  /// kFailedPrecondition where no target or no trainer would stay while devices change their roles.
  Result<Plan> plan(const ClusterPlacement& next) const;
  /// Gives a node the next number, unless it has one.
  void know(const std::string& node);
  /// A part of a plan is so.
  void add(const Devices& devices);
  void retire(const Devices& devices);

  ClusterPlacement placement() const;
  /// All nodes that have ever been in the run, in an order that stays.
  const std::vector<std::string>& nodes() const { return nodes_; }
  /// The process of a target or trainer; none for one that is not there.
  std::optional<PlacedDevices> place_of(WorkerKind kind, int number) const;
  /// The number of a node, or -1.
  int node_number(const std::string& node) const;

 private:
  struct Seat {
    PlacedDevices process;
    DeviceId device;
  };

  Devices workers() const;

  std::map<int, PlacedDevices> targets_;
  std::map<int, Seat> trainers_;
  int next_target_ = 0, next_trainer_ = 0;
  std::vector<std::string> nodes_;
};

}  // namespace percheron
