#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "actors/policy/balance.h"
#include "actors/policy/run_activity.h"
#include "actors/service/placement.h"
#include "base/clock.h"
#include "proto/control.pb.h"
#include "proto/run.pb.h"

namespace percheron {

/// Watches what a run's targets and trainers are measured to do, and says which device should have
/// another role; with placement.auto_balance it gives it that role.
class Balancer {
 public:
  struct Ways {
    std::function<ClusterPlacement()> placement;           // of now
    std::function<void(const proto::ScaleRun&)> scale;     // nobody waits for an answer
    std::function<void(const std::string& sentence)> say;  // to people
  };

  /// `run` is the configuration of the run `name`; `clock` is borrowed.
  Balancer(std::string name, proto::Run run, std::shared_ptr<const RunActivity> activity, Ways ways,
           const Clock& clock);
  ~Balancer();

  /// Calls tick() once a second from now on.
  void begin();
  void tick();

 private:
  struct Totals {
    int64_t captured = 0, trained = 0;  // samples
  };

  BalanceMeasure measure(const RunActivitySnapshot& snapshot);
  void propose(const ClusterPlacement& placement, const RoleSplit& now, const RoleSplit& then);

  const std::string name_;
  const proto::Run run_;
  const std::shared_ptr<const RunActivity> activity_;
  const Ways ways_;
  const Clock& clock_;
  BalancePolicy policy_;
  std::deque<Totals> window_;
  std::string said_;     // the last sentence, which is not repeated
  double tried_at_ = 0;  // when a device was last given another role; 0 = never
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace percheron
