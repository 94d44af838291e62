#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>

#include "actors/policy/credits.h"
#include "actors/run_setup.h"
#include "actors/work_thread.h"
#include "base/clock.h"
#include "data/epoch_plan.h"
#include "data/micro_batch.h"

namespace percheron {

/// The epoch number of held-out micro-batches.
inline constexpr int64_t kHeldOutEpoch = -1;

/// Makes the rows of any micro-batch of a run from its data and plan, on demand. Epochs are planned
/// on a thread of their own, each while the one before is used: callers wait for a plan only where
/// planning takes longer than training. Thread-safe.
class BatchSource {
 public:
  /// `clock` is borrowed.
  BatchSource(std::shared_ptr<const RunSetup> setup, const Clock& clock);

  /// The rows of `id`; epoch kHeldOutEpoch for held-out data.
  MicroBatch make(MicroBatchId id);
  /// Micro-batches of held-out data; 0 without.
  int64_t held_out_micro_batches() const { return held_out_ ? held_out_->micro_batches() : 0; }
  /// Bytes that the features of `id` will take.
  uint64_t feature_bytes(MicroBatchId id);
  /// The upper bound of the bucket of length that `id` was taken from; 0 where there are none.
  int64_t bucket_bound(MicroBatchId id);
  /// The features of a whole step.
  uint64_t step_bytes(const PlannedStep& step);
  /// Hash of the order of `epoch`.
  std::string plan_hash(int64_t epoch) { return plan(epoch)->hash(); }

 private:
  using PlanPtr = std::shared_ptr<const EpochPlan>;
  PlanPtr plan(int64_t epoch);
  /// The plan of `epoch`, now or later. The caller holds the mutex.
  std::shared_future<PlanPtr> ask_for(int64_t epoch);

  // Targets may be an epoch ahead of the trainers, and the one after is planned ahead.
  static constexpr size_t kPlansMax = 3;

  std::shared_ptr<const RunSetup> setup_;
  PlanPtr held_out_;
  std::mutex mutex_;
  std::map<int64_t, std::shared_future<PlanPtr>> plans_;
  WorkThread planner_;  // last: it uses the others
};

/// Whether the held-out features are still to be made.
enum class HeldOutWork { kFirst, kDone };

/// Yields the work of a run in order: all held-out micro-batches, then those of the steps from
/// `first_step` on.
class WorkSequence {
 public:
  WorkSequence(std::shared_ptr<const RunSetup> setup, std::shared_ptr<BatchSource> batches,
               int64_t first_step, HeldOutWork held_out = HeldOutWork::kFirst);
  std::optional<WorkUnit> next();

 private:
  std::shared_ptr<const RunSetup> setup_;
  std::shared_ptr<BatchSource> batches_;
  int64_t held_out_next_ = 0;
  int64_t step_;
  int64_t in_step_ = 0;
  uint64_t step_bytes_ = 0;
};

}  // namespace percheron
