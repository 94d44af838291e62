#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "actors/observer.h"
#include "actors/train.h"
#include "proto/run.pb.h"

namespace percheron {

/// What a tiny run is made of.
struct TinyOptions {
  int64_t samples = 24;
  int64_t held_out = 0;  // samples; 0 = no evaluation
  int64_t epochs = 2;
  int64_t micro_batches_per_step = 2;
  bool dflash = false;
  int64_t poisoned = 0;  // training samples from number 5 on whose states are not finite in bf16
};

/// Writes a toy target and random token shards below a fresh directory `name` of the test's
/// temporary one, and returns a configuration that trains on them with one target and one trainer.
proto::Run make_tiny_run(const std::string& name, const TinyOptions& options = {});

/// Places `targets` and `trainers` actors on CPU devices of their own, one thread each.
void place(proto::Run& run, int targets, int trainers);

/// Keeps everything that it is told.
class RecordingObserver : public RunObserver {
 public:
  void on_step(const StepReport& report) override {
    const std::lock_guard lock(mutex_);
    steps_.push_back(report);
  }
  void on_evaluation(const EvaluationReport& report) override {
    const std::lock_guard lock(mutex_);
    evaluations_.push_back(report);
  }
  void on_checkpoint(const CheckpointReport& report) override {
    const std::lock_guard lock(mutex_);
    checkpoints_.push_back(report);
  }
  void on_event(const std::string& text) override {
    const std::lock_guard lock(mutex_);
    events_.push_back(text);
  }
  void on_end(const RunSummary&) override { ++ends_; }

  /// Only after the run, except by an observer that is called itself.
  const std::vector<StepReport>& steps() const { return steps_; }
  const std::vector<EvaluationReport>& evaluations() const { return evaluations_; }
  const std::vector<CheckpointReport>& checkpoints() const { return checkpoints_; }
  const std::vector<std::string>& events() const { return events_; }
  int ends() const { return ends_; }
  bool heard(const std::string& part) const;

 private:
  std::mutex mutex_;
  std::vector<StepReport> steps_;
  std::vector<EvaluationReport> evaluations_;
  std::vector<CheckpointReport> checkpoints_;
  std::vector<std::string> events_;
  int ends_ = 0;
};

/// train() with the operating system's files and clock.
Result<RunSummary> train_tiny(const proto::Run& run, RunObserver& observer,
                              const std::atomic<int>* stop_signals = nullptr);

/// The f32 parameters of the checkpoint that `latest` of the run points at, as bytes.
std::string latest_masters(const proto::Run& run);
/// A counter of the summary; -1 when there is none of this name.
int64_t counter(const RunSummary& summary, const std::string& name);

}  // namespace percheron
