#pragma once

#include <cstdint>
#include <vector>

#include "data/micro_batch.h"

namespace percheron {

/// The micro-batches of one step: indices [first, first + count) of an epoch.
struct PlannedStep {
  int64_t step = 0;  // of the run, counted from 0
  int64_t epoch = 0;
  int64_t first = 0;
  int64_t count = 0;

  bool contains(MicroBatchId id) const {
    return id.epoch == epoch && first <= id.index && id.index < first + count;
  }
};

/// Which micro-batches make which step. Step s of an epoch is the indices s*G .. (s+1)*G - 1; the
/// epoch's last step may be smaller and is never dropped. A pure function of its arguments, so that
/// a resumed run has the same steps (invariant 5).
class StepPlan {
 public:
  /// `micro_batches` holds the number of micro-batches of each epoch, all > 0. `steps_max` ends the
  /// plan early, also in the middle of an epoch; 0 = no limit.
  StepPlan(int64_t micro_batches_per_step, std::vector<int64_t> micro_batches, int64_t steps_max);

  int64_t steps() const { return steps_; }
  int64_t epochs() const { return static_cast<int64_t>(micro_batches_.size()); }
  int64_t micro_batches_per_step() const { return per_step_; }
  /// step in [0, steps()).
  PlannedStep at(int64_t step) const;
  /// Where `step`, in [0, steps()], begins: the next micro-batch of the same epoch, or, after an
  /// epoch's last one, the first of the next.
  MicroBatchId begin(int64_t step) const;
  /// Micro-batches of `epoch` that the plan reaches.
  int64_t micro_batches(int64_t epoch) const;
  /// Steps before the first one of `epoch`.
  int64_t first_step(int64_t epoch) const { return first_step_[epoch]; }
  bool last_of_epoch(int64_t step) const;

 private:
  int64_t per_step_;
  std::vector<int64_t> micro_batches_;
  std::vector<int64_t> first_step_;  // per epoch, and one past the last
  int64_t steps_;
};

}  // namespace percheron
