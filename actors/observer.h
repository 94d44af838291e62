#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace percheron {

/// One committed step, as seen by the supervisor.
struct StepReport {
  int64_t step = 0;  // counted from 1: steps committed so far
  int64_t steps_total = 0;
  int64_t epoch = 0;
  double loss = 0;                        // step's loss sum / weight
  std::vector<double> position_loss;      // per TTT step or slot
  std::vector<double> position_accuracy;  // in [0, 1]
  double simulated_acceptance_length = 1;
  double learning_rate = 0;
  double gradient_norm = 0;
  int64_t tokens = 0;      // of this step
  int64_t supervised = 0;  // of this step
  int64_t samples = 0;     // of this step
  int64_t tokens_total = 0;
  double step_seconds = 0;
  double target_tokens_per_second = 0;   // while targets were busy: their capacity
  double trainer_tokens_per_second = 0;  // while trainers were busy: their capacity
  double tokens_per_second = 0;          // of the run, over the last steps
  double wait_share = 0;  // of the trainers' time spent without work, over the last steps
  uint64_t pool_bytes = 0, pool_bytes_max = 0;
  uint64_t cached_bytes = 0;
  int64_t steals_total = 0;
  double eta_seconds = 0;
};

/// Held-out acceptance at a step.
struct EvaluationReport {
  int64_t step = 0;
  std::vector<int64_t> draft_lengths;
  std::vector<double> acceptance_length_walk;  // per draft length
  double seconds = 0;
  bool best = false;
};

struct CheckpointReport {
  int64_t step = 0;
  std::string directory;
  uint64_t bytes = 0;  // of all its files
  double seconds = 0;
  std::string error;  // empty if it was written
};

/// What a run is about, as an operator sees it.
enum class RunState {
  kRunning,
  kPausing,   // to be held after the step that is under way
  kPaused,    // held between two steps
  kWaiting,   // no trainer, or no target, is left: one may come back
  kStopping,  // to be ended after the step that is under way
  kEnded,
};
/// One word: "running", "pausing", ...
const char* run_state_name(RunState state);

struct StateReport {
  RunState state = RunState::kRunning;
  int64_t step = 0;  // steps that are committed and applied
};

/// Which workers a run has now, and what their coming and going has cost since this process
/// started.
struct WorkersReport {
  std::set<int> targets;      // that are there
  std::vector<int> trainers;  // that reduce together
  int64_t membership = 0;     // grows with every change of those trainers
  int64_t membership_changes = 0;
  int64_t requeued = 0;    // micro-batches handed out again because their target was lost
  int64_t recomputed = 0;  // micro-batches handed out again because a trainer was lost
};

/// What a run did, for report.json and the exit code: from its beginning, whatever resumed it in
/// between.
struct RunSummary {
  int64_t steps = 0, steps_total = 0, epochs = 0;
  int64_t tokens = 0, supervised = 0;
  double seconds = 0;
  double feature_seconds = 0, train_seconds = 0;  // busy time of targets and trainers
  uint64_t pool_bytes_peak = 0;                   // since this process started
  bool stopped_early = false;                     // by a signal, after a checkpoint
  std::string latest_checkpoint, best_checkpoint;
  // Dropped, skipped, quarantined, ...: everything that was counted; names that end in
  // "_since_start" count what happened since this process started.
  std::vector<std::pair<std::string, int64_t>> counters;
};

/// Receives what happens in a run, in order, from one thread at a time. Must not block for long.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void on_step(const StepReport&) {}
  virtual void on_evaluation(const EvaluationReport&) {}
  virtual void on_checkpoint(const CheckpointReport&) {}
  /// A snapshot was ordered at a step whose checkpoint is `directory` already.
  virtual void on_checkpoint_kept(int64_t /*step*/, const std::string& /*directory*/) {}
  virtual void on_state(const StateReport&) {}
  virtual void on_workers(const WorkersReport&) {}
  /// A sentence for people: a fallback, a dropped row, a resume.
  virtual void on_event(const std::string&) {}
  virtual void on_end(const RunSummary&) {}
};

}  // namespace percheron
