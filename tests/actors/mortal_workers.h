#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/train.h"
#include "tests/actors/tiny_run.h"

namespace percheron {

/// What a worker can be at when it dies.
enum class Moment { kAdd, kCollect, kReduce, kApply, kEvaluate, kSnapshot, kMake };

/// A death that a test has planned: at the `count`-th call of `moment` the worker says nothing any
/// more, and the supervisor is told that it is lost. Its thread hangs until it is let go; then it
/// goes on as one that was only cut off, and what it says must count no more.
class Death {
 public:
  Death(Moment moment, int count) : moment_(moment), left_(count) {}

  /// True once, at the planned call.
  bool strikes(Moment moment) {
    const std::lock_guard lock(mutex_);
    return moment == moment_ && !struck_ && --left_ == 0 ? (struck_ = true) : false;
  }
  void wait() const { released_.wait(); }
  /// May be called again.
  void let_go() {
    const std::lock_guard lock(mutex_);
    if (std::exchange(let_go_, true)) return;
    release_.set_value();
  }
  bool struck() const {
    const std::lock_guard lock(mutex_);
    return struck_;
  }

 private:
  const Moment moment_;
  mutable std::mutex mutex_;
  int left_;
  bool struck_ = false, let_go_ = false;
  std::promise<void> release_;
  std::shared_future<void> released_ = release_.get_future().share();
};

/// A run whose workers die and come back as planned.
class MortalRun {
 public:
  explicit MortalRun(const proto::Run& run) : run_(run) {}

  /// The death of a worker; it comes back with `back_at` steps done, or when the run waits for one
  /// (none: it stays away). `late`: until then it hangs; else only until all know of its death.
  struct Plan {
    WorkerKind kind = WorkerKind::kTrainer;
    int number = 0;
    Moment moment = Moment::kAdd;
    int count = 1;
    std::optional<int64_t> back_at;
    bool late = false;
  };
  void plan(const Plan& plan) {
    deaths_.push_back({plan, std::make_shared<Death>(plan.moment, plan.count)});
  }
  /// Called from the observer's thread after each step.
  std::function<void(const StepReport&)> on_step;
  std::function<void(const StateReport&)> on_state;
  std::function<void(const CheckpointReport&)> on_checkpoint;
  /// Called before the actors start.
  std::function<void(RunParts&)> prepare;
  double worker_wait_seconds = 60;
  uint64_t gradient_bucket_bytes = kGradientBucketBytes;

  Result<RunSummary> train();
  RunControl& control() { return control_; }

  const RecordingObserver& heard() const { return observer_; }
  const std::vector<StateReport>& states() const { return states_; }
  const std::vector<WorkersReport>& workers() const { return workers_; }
  /// The last report of each step, for steps may be repeated.
  std::map<int64_t, StepReport> steps() const;
  bool all_struck() const;

 private:
  struct Planned {
    Plan plan;
    std::shared_ptr<Death> death;
    bool told_back = false;
  };
  class Observer;
  void bring_back(int64_t steps_done);
  void let_go_of_known(const WorkersReport& report);

  proto::Run run_;
  RunControl control_;
  std::vector<Planned> deaths_;
  RecordingObserver observer_;
  std::vector<StateReport> states_;
  std::vector<WorkersReport> workers_;
};

}  // namespace percheron
