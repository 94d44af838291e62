#include "actors/policy/step_plan.h"

#include <algorithm>

#include "base/check.h"

namespace percheron {

StepPlan::StepPlan(int64_t micro_batches_per_step, std::vector<int64_t> micro_batches,
                   int64_t steps_max)
    : per_step_(micro_batches_per_step), micro_batches_(std::move(micro_batches)) {
  PERCHERON_CHECK(per_step_ > 0, "a step holds at least one micro-batch");
  first_step_.push_back(0);
  for (int64_t count : micro_batches_) {
    PERCHERON_CHECK(count > 0, "an epoch holds at least one micro-batch");
    first_step_.push_back(first_step_.back() + (count - 1) / per_step_ + 1);
  }
  steps_ = steps_max > 0 ? std::min(steps_max, first_step_.back()) : first_step_.back();
}

PlannedStep StepPlan::at(int64_t step) const {
  PERCHERON_CHECK(0 <= step && step < steps_, "no such step");
  const auto after = std::upper_bound(first_step_.begin(), first_step_.end(), step);
  const int64_t epoch = after - first_step_.begin() - 1;
  const int64_t first = (step - first_step_[epoch]) * per_step_;
  return {step, epoch, first, std::min(per_step_, micro_batches_[epoch] - first)};
}

MicroBatchId StepPlan::begin(int64_t step) const {
  if (step == 0) return {0, 0};
  const PlannedStep before = at(step - 1);
  const int64_t end = before.first + before.count;
  if (end == micro_batches_[before.epoch]) return {before.epoch + 1, 0};
  return {before.epoch, end};
}

int64_t StepPlan::micro_batches(int64_t epoch) const {
  const int64_t reached = std::clamp(steps_ - first_step_[epoch], int64_t{0},
                                     first_step_[epoch + 1] - first_step_[epoch]);
  if (reached == 0) return 0;
  // The last step may be smaller, and all but it hold fewer than there are.
  return std::min(micro_batches_[epoch] - (reached - 1) * per_step_, per_step_) +
         (reached - 1) * per_step_;
}

bool StepPlan::last_of_epoch(int64_t step) const {
  const PlannedStep range = at(step);
  return step + 1 == steps_ || step + 1 == first_step_[range.epoch + 1];
}

}  // namespace percheron
