#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "actors/observer.h"
#include "actors/policy/restart_history.h"
#include "actors/run_control.h"
#include "actors/run_setup.h"
#include "actors/service/placement_change.h"
#include "base/clock.h"
#include "base/status.h"
#include "proto/control.pb.h"

namespace percheron {

/// The worker processes of a run, as its supervisor sees them. Thread-safe.
class WorkerSet {
 public:
  /// How frames are sent to a worker, or to the daemon of a node.
  struct Ways {
    std::function<void(const PlacedDevices&, proto::Frame)> to_worker;
    std::function<void(const std::string& node, proto::Frame)> to_daemon;
  };

  /// `start` is what every worker is told beside its own device and roles. References are borrowed.
  WorkerSet(ClusterPlacement placement, proto::StartWorker start, Ways ways, RunControl& control,
            const Clock& clock, RestartLimits limits = {});
  ~WorkerSet() { stop(); }

  /// Starts all and waits until they have their targets, the same everywhere and the same rows as
  /// `setup`; says what they are. An error names the worker. One whose node can't be reached is
  /// lost from the beginning, as long as there is a target and a trainer.
  Status load(const RunSetup& setup, RunObserver& observer);
  /// Of the weights of the target; after load().
  std::string target_hash();
  /// Gives all what they need and waits until they are ready; the trainers must have the same
  /// parameters. One with a target compares its weights of 8 bits with full ones, for all of them.
  /// From now on those that end are started again, and `control` is told.
  Status prepare(const proto::PrepareWorker& order, RunObserver& observer);
  /// What that comparison found; empty where there was nothing to compare. After prepare().
  proto::WeightsCompared weights_compared();
  /// Nothing is started or told any more; who waits is told.
  void stop();

  // Workers that are placed elsewhere, after prepare().
  /// Tells everybody the nodes as tickets number them.
  void know(const std::vector<std::string>& nodes);
  /// Starts processes on devices that have none and waits until they are ready, the same files as
  /// elsewhere; `control` is told by admit(). If one can't be started all of them are ended, and
  /// the error names it.
  Status try_out(const WorkerPlaces::Devices& devices);
  /// From now on they are workers like all others.
  void admit(const WorkerPlaces::Devices& devices);
  /// These numbers have no process any more once the one that they have ends.
  void retire(const WorkerPlaces::Devices& devices);
  /// Ends the processes of these devices and waits for that.
  Status end(const std::set<PlacedDevices>& devices);

  // What comes from workers and daemons.
  void take(const PlacedDevices& from, const proto::WorkerLoaded& loaded);
  void take(const PlacedDevices& from, const proto::WorkerPrepared& prepared);
  void take(const PlacedDevices& of, const proto::WorkerEnded& ended);
  /// A whole node is lost.
  void node_lost(const std::string& node, const proto::WorkerEnded& ended);
  /// The way to all of them is lost: who waits is told.
  void link_lost(const std::string& why);

  /// How its process calls itself now: an earlier one on the same devices had a lower number; none
  /// where there is no worker.
  std::optional<int> attempt_of(const PlacedDevices& placed);
  /// The run has committed a step: those that work get on.
  void step_committed(int64_t step);
  /// A sentence on the first of `devices` whose process has ended and is not started again; empty
  /// when there is none.
  std::string given_up(const WorkerPlaces::Devices& devices);
  std::vector<proto::WorkerState> states();

 private:
  enum class State { kLoading, kPreparing, kReady, kEnded };
  struct Worker {
    ClusterPlacement::Roles roles;
    ClusterPlacement::Roles retired;  // of roles: not to be started again
    bool absent = false;              // its node can't be reached: the run begins without it
    bool on_trial = false;            // has not been admitted
    bool leaving = false;             // its process is to end, and is forgotten then
    State state = State::kLoading;
    int attempt = 0;  // of its process, among all of these devices
    int started_again = 0;
    proto::WorkerLoaded loaded;
    proto::WorkerPrepared prepared;
    std::string error;      // why it is of no use
    double restart_at = 0;  // 0 = not to be started again
    RestartHistory restarts;
  };

  void start_locked(const PlacedDevices& placed, Worker& worker);
  void spawn_locked(const PlacedDevices& placed, Worker& worker);
  void tell_ready(const ClusterPlacement::Roles& roles);
  void send_prepare_locked(const PlacedDevices& placed, const proto::PrepareWorker& order);
  void tell_lost(const ClusterPlacement::Roles& roles);
  /// What differs from the other workers' files; empty if nothing does.
  std::string difference_locked(const proto::WorkerLoaded& loaded) const;
  int cpu_devices_locked(const std::string& node) const;
  void ended_locked(const PlacedDevices& placed, Worker& worker, const proto::WorkerEnded& ended);
  void end_locked(const PlacedDevices& placed, Worker& worker);
  void forget_ended_locked();
  void lost_locked(const PlacedDevices& placed, Worker& worker, const std::string& why,
                   bool unreachable);
  Status wait_for(State state);
  /// Of those that are absent; an error when no target or no trainer is there.
  Status check_present_locked() const;
  void tell_absent_locked();
  void restart_ended();
  double now() const { return static_cast<double>(clock_.monotonic_ns()) * 1e-9; }

  const proto::StartWorker start_;
  const Ways ways_;
  RunControl& control_;
  const Clock& clock_;
  const RestartLimits limits_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<PlacedDevices, Worker> workers_;
  std::map<PlacedDevices, int> attempts_;                // that were made so far
  std::vector<std::string> nodes_;                       // as tickets number them
  std::string target_hash_, data_hash_, held_out_hash_;  // what all must have; empty = not known
  proto::WeightsCompared weights_compared_;
  std::string link_error_;
  int64_t step_ = 0;  // the highest that was committed
  std::optional<proto::PrepareWorker> prepare_;
  bool going_ = false;  // all were ready once
  bool stopping_ = false;
  std::thread restarter_;
};

}  // namespace percheron
