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
  std::vector<PlacedDevice> add_targets, remove_targets, add_trainers, remove_trainers;
};

/// Reads what an operator wants; "cpu:0" is a device of `own_node`. kInvalidArgument names the
/// value.
Result<PlacementChange> read_change(const proto::ScaleRun& order, const std::string& own_node);

/// The placement after a change; `now` where all of it is so already. kFailedPrecondition and one
/// sentence where it can't be: a device that has the role already or has it not, no target or
/// trainer left, what `run` says of its trainers.
Result<ClusterPlacement> change_placement(const ClusterPlacement& now,
                                          const PlacementChange& change, const proto::Run& run);

/// `run` with this placement, each device with its node.
void set_placement(const ClusterPlacement& placement, proto::Run& run);

/// The workers of a run by their numbers, while devices come and go. Numbers only grow: nobody gets
/// that of one that is gone.
class WorkerPlaces {
 public:
  using Roles = ClusterPlacement::Roles;
  using Devices = std::map<PlacedDevice, Roles>;

  explicit WorkerPlaces(const ClusterPlacement& placement);

  /// How a run comes to another placement. The process of a device has the same roles all its life.
  struct Plan {
    Devices fresh;    // have no process of the run: they are started before anybody leaves
    Devices retired;  // these numbers leave
    std::set<PlacedDevice> ended;  // no role is left here: their processes end
    Devices moved;                 // of `ended`: begin anew in other roles after that
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
  /// Where a target or trainer is; none for one that is not there.
  std::optional<PlacedDevice> place_of(WorkerKind kind, int number) const;
  /// The number of a node, or -1.
  int node_number(const std::string& node) const;

 private:
  using Numbers = std::map<int, PlacedDevice>;

  Numbers targets_, trainers_;
  int next_target_ = 0, next_trainer_ = 0;
  std::vector<std::string> nodes_;
};

}  // namespace percheron
