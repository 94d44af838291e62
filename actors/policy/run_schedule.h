#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace percheron {

/// When held-out acceptance is measured. `step` counts applied steps: 0 = the untrained drafter.
class EvaluationPolicy {
 public:
  /// `every_steps` 0 = only at the start, at `at_steps` and at the end. Without held-out data
  /// (`enabled` false) never.
  EvaluationPolicy(bool enabled, int64_t every_steps, std::vector<int64_t> at_steps,
                   int64_t steps_total);
  bool due(int64_t step) const;

 private:
  bool enabled_;
  int64_t every_steps_;
  std::vector<int64_t> at_steps_;
  int64_t steps_total_;
};

/// When a checkpoint is written: before the first step of a new run (the dry save that proves the
/// disk, Automodel#2310), every so many steps, with every evaluation (so that `best` can point at
/// it), and at the end.
class CheckpointPolicy {
 public:
  /// `every_steps` 0 = only at the start and the end.
  CheckpointPolicy(int64_t every_steps, int64_t steps_total);
  bool due(int64_t step, bool evaluated) const;

 private:
  int64_t every_steps_;
  int64_t steps_total_;
};

/// What the operator's signals ask for: the first a checkpoint at the next step boundary and an
/// orderly end, the second to end at once.
class StopPolicy {
 public:
  enum class Wish { kGoOn, kStopAtBoundary, kQuit };
  Wish wish(int signals) const {
    if (signals <= 0) return Wish::kGoOn;
    return signals == 1 ? Wish::kStopAtBoundary : Wish::kQuit;
  }
};

/// Which step directory `best` points at: the highest measured acceptance, the earliest of equals.
class BestPolicy {
 public:
  /// A checkpoint of `step` whose held-out acceptance was measured. True if it is the best so far.
  bool better(int64_t step, double acceptance);
  std::optional<int64_t> step() const { return step_; }
  double acceptance() const { return acceptance_; }
  /// What an earlier part of the run found.
  void restore(int64_t step, double acceptance);

 private:
  std::optional<int64_t> step_;
  double acceptance_ = 0;
};

}  // namespace percheron
