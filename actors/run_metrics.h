#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "actors/metrics_page.h"
#include "actors/observer.h"
#include "actors/policy/run_activity.h"
#include "base/clock.h"

namespace percheron {

/// The program that runs.
struct BuildInfo {
  std::string version, commit;
  std::string cuda;  // version of the toolkit; "none" without
};

/// The newest that a run reported, for metrics and for people who watch.
struct RunStatus {
  std::string run;  // its name
  StepReport step;
  EvaluationReport evaluation;
  CheckpointReport checkpoint;  // the last one written
  std::optional<bool> ended_well;
};

/// The metrics of one run, whatever resumes it in this process: counters never run backward.
/// Thread-safe: reports come from the run's observer thread, collect() from a server's.
class RunMetrics final : public RunObserver {
 public:
  /// `run`: its label. `clock` is borrowed.
  RunMetrics(std::string run, BuildInfo build, std::shared_ptr<RunActivity> activity,
             const Clock& clock);

  /// What is known before the first step: samples that selection leaves out, and where the run goes
  /// on from.
  struct Start {
    int64_t too_long = 0, unsupervised = 0;
    int64_t step = 0, steps_total = 0;
  };
  void begin(const Start& start);

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  void on_checkpoint(const CheckpointReport& report) override;
  void on_workers(const WorkersReport& report) override;
  void on_event(const std::string& text) override;
  void on_end(const RunSummary& summary) override;
  /// The run ended with an error.
  void fail();

  void collect(MetricsPage& page) const;
  RunStatus status() const;
  const RunActivity& activity() const { return *activity_; }

  /// The run is training, or has been: everything that can refuse it at its start is past.
  bool ready() const;
  /// The run's supervisor is at work, or need not be.
  bool alive() const;
  /// One word: "loading", "training", ...
  std::string state() const;

  /// A supervisor that says nothing for so long hangs: it ticks ten times a second.
  static constexpr double kSilentSecondsMax = 60;

 private:
  /// All that is counted; copied whole for a page.
  struct Counts {
    Start start;
    RunStatus status;
    bool began = false;
    double began_at = 0, last_step_at = 0, last_checkpoint_at = 0;  // Unix time
    int64_t steps = 0, samples = 0, tokens = 0, supervised = 0;
    int64_t too_long = 0, unsupervised = 0;
    std::optional<WorkersReport> workers;  // the last one
    int64_t membership_changes = 0;        // before the run went on
    int64_t checkpoints = 0, checkpoint_failures = 0, events = 0;
    DurationHistogram evaluation_seconds, checkpoint_seconds;
  };
  MetricsPage::Labels labels(MetricsPage::Labels more = {}) const;
  Counts counts() const;
  std::string state_of(const Counts& counts, const RunPhase& phase) const;
  void collect_progress(MetricsPage& page, const Counts& counts) const;
  void collect_learning(MetricsPage& page, const Counts& counts) const;
  void collect_checkpoints(MetricsPage& page, const Counts& counts) const;
  void collect_workers(MetricsPage& page, const RunActivitySnapshot& seen) const;
  void collect_members(MetricsPage& page, const Counts& counts) const;
  void collect_queues(MetricsPage& page, const RunActivitySnapshot& seen) const;
  void collect_devices(MetricsPage& page, const RunActivitySnapshot& seen) const;

  const std::string run_;
  const BuildInfo build_;
  const std::shared_ptr<RunActivity> activity_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  Counts counts_;
};

}  // namespace percheron
