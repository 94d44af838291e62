#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "actors/observer.h"
#include "actors/run_control.h"
#include "actors/service/placement_change.h"
#include "actors/service/worker_set.h"
#include "base/status.h"
#include "proto/control.pb.h"

namespace percheron {

/// Gives a run other devices while it goes on: one order after the other, each answered when what
/// it asks for is so. New workers are ready before any is taken out; if one can't be started, the
/// run stays as it was. Thread-safe.
class Scaler {
 public:
  struct Ways {
    std::function<void(const proto::RunOrderReply&)> reply;
    /// The run's placement from now on, for those who start it again.
    std::function<void(const proto::RunPlacement&)> keep;
    /// There is an actor of this number from now on, whose process is there.
    std::function<void(WorkerKind, int number, const PlacedDevices&)> address;
  };

  /// `run` is its configuration; devices without a node are of `own_node`. References are borrowed.
  Scaler(const ClusterPlacement& placement, proto::Run run, std::string own_node,
         WorkerSet& workers, RunControl& control, Ways ways);
  ~Scaler() { stop(); }

  void take(const proto::ScaleRun& order);
  /// The run's actors are there: what was ordered is done from now on.
  void begin();
  /// Nothing is done any more; orders that are under way stay without an answer.
  void stop();
  /// Which workers the run has, as it tells.
  void on_workers(const WorkersReport& report);

  ClusterPlacement placement() const;
  std::vector<std::string> nodes() const;
  /// Where a target or trainer of the run is; none for one that it has not, or no longer.
  std::optional<PlacedDevices> place_of(WorkerKind kind, int number) const;
  /// -1 for a node that the run has never had.
  int node_number(const std::string& node) const;

 private:
  void work();
  Status perform(const proto::ScaleRun& order);
  Status change_to(const ClusterPlacement& next);
  void admit(const WorkerPlaces::Devices& devices);
  void retire(const WorkerPlaces::Devices& devices);
  void keep(const ClusterPlacement& placement);
  /// Waits until the run says that those work and these don't.
  Status wait_for(const WorkerPlaces::Devices& working, const WorkerPlaces::Devices& gone);

  const proto::Run run_;
  const std::string own_node_;
  WorkerSet& workers_;
  RunControl& control_;
  const Ways ways_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  WorkerPlaces places_;
  std::deque<proto::ScaleRun> orders_;
  WorkersReport report_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace percheron
