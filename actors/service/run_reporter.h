#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actors/observer.h"
#include "actors/policy/run_activity.h"
#include "base/clock.h"
#include "proto/control.pb.h"

namespace percheron {

/// Tells a run's daemon what happens, a few times a second at most. Thread-safe.
class RunReporter final : public RunObserver {
 public:
  using Send = std::function<void(const proto::RunReport&)>;

  /// `clock` is borrowed.
  RunReporter(const Clock& clock, Send send);

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  void on_checkpoint(const CheckpointReport& report) override;

  void on_state(const StateReport& report) override;

  /// Where the workers' states are asked for; null: nowhere any more.
  void set_workers(std::function<std::vector<proto::WorkerState>()> workers);
  /// Whose numbers a report tells as long as there are workers.
  void set_activity(std::shared_ptr<const RunActivity> activity);
  /// Sends what it is, unless it was sent a moment ago: a step may take long.
  void tick();
  /// What whoever watches the run should know all along.
  void add_note(const std::string& note);
  /// Another node has the run by now.
  void set_moved(const std::string& node);
  /// At once.
  void set_state(proto::RunReport::State state, const std::string& message = "");

 private:
  static constexpr int64_t kIntervalNs = 500'000'000;

  void send_locked();

  const Clock& clock_;
  const Send send_;
  std::mutex mutex_;
  std::function<std::vector<proto::WorkerState>()> workers_;
  std::shared_ptr<const RunActivity> activity_;
  proto::RunReport report_;
  int64_t sent_at_ = 0;
};

/// Calls a reporter's tick() as long as it lives.
class ReportTicks {
 public:
  explicit ReportTicks(RunReporter& reporter);  // borrowed
  ~ReportTicks();

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace percheron
