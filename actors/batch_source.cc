#include "actors/batch_source.h"

#include <algorithm>
#include <utility>

namespace percheron {

BatchSource::BatchSource(std::shared_ptr<const RunSetup> setup, const Clock& clock)
    : setup_(std::move(setup)), planner_("plan", clock) {
  const RunData& data = setup_->data;
  if (!data.held_out) return;
  held_out_ = std::make_shared<const EpochPlan>(
      EpochPlan::make(data.held_out_selection, data.held_out_options, 0));
}

std::shared_future<BatchSource::PlanPtr> BatchSource::ask_for(int64_t epoch) {
  std::shared_future<PlanPtr>& known = plans_[epoch];
  if (known.valid()) return known;
  const auto made = std::make_shared<std::promise<PlanPtr>>();
  const std::shared_future<PlanPtr> plan = known = made->get_future().share();
  planner_.post([setup = setup_, epoch, made] {
    made->set_value(std::make_shared<const EpochPlan>(
        EpochPlan::make(setup->data.selection, setup->data.options, epoch)));
  });
  return plan;
}

BatchSource::PlanPtr BatchSource::plan(int64_t epoch) {
  if (epoch == kHeldOutEpoch) return held_out_;
  std::shared_future<PlanPtr> wanted;
  {
    const std::lock_guard lock(mutex_);
    wanted = ask_for(epoch);
    if (epoch + 1 < setup_->steps.epochs()) ask_for(epoch + 1);
    while (plans_.size() > kPlansMax) plans_.erase(plans_.begin());
  }
  return wanted.get();
}

MicroBatch BatchSource::make(MicroBatchId id) {
  const std::shared_ptr<const EpochPlan> epoch = plan(id.epoch);
  const bool held_out = id.epoch == kHeldOutEpoch;
  const TokenDataset& rows = held_out ? *setup_->data.held_out : *setup_->data.train;
  MicroBatch batch = make_micro_batch(rows, *epoch, id.index);
  batch.id = id;
  return batch;
}

uint64_t BatchSource::feature_bytes(MicroBatchId id) {
  const std::shared_ptr<const EpochPlan> epoch = plan(id.epoch);
  return setup_->features.bytes(epoch->tokens(id.index),
                                static_cast<int64_t>(epoch->samples(id.index).size()));
}

int64_t BatchSource::bucket_bound(MicroBatchId id) {
  const BucketBounds& bounds = setup_->data.options.bucket_bounds;
  if (id.epoch == kHeldOutEpoch || bounds.empty()) return 0;
  const std::shared_ptr<const EpochPlan> epoch = plan(id.epoch);
  if (!epoch->padded()) return 0;
  // All samples of a micro-batch are padded to its longest.
  const int64_t length =
      epoch->tokens(id.index) / static_cast<int64_t>(epoch->samples(id.index).size());
  const auto bound = std::ranges::lower_bound(bounds, length);
  return bound == bounds.end() ? bounds.back() : *bound;
}

uint64_t BatchSource::step_bytes(const PlannedStep& step) {
  uint64_t bytes = 0;
  for (int64_t i = step.first; i < step.first + step.count; ++i) {
    bytes += feature_bytes({step.epoch, i});
  }
  return bytes;
}

WorkSequence::WorkSequence(std::shared_ptr<const RunSetup> setup,
                           std::shared_ptr<BatchSource> batches, int64_t first_step,
                           HeldOutWork held_out)
    : setup_(std::move(setup)),
      batches_(std::move(batches)),
      held_out_next_(held_out == HeldOutWork::kDone ? batches_->held_out_micro_batches() : 0),
      step_(first_step) {}

std::optional<WorkUnit> WorkSequence::next() {
  if (held_out_next_ < batches_->held_out_micro_batches()) {
    const MicroBatchId id{kHeldOutEpoch, held_out_next_++};
    const uint64_t bytes = batches_->feature_bytes(id);
    return WorkUnit{id, step_, bytes, bytes};
  }
  if (step_ >= setup_->steps.steps()) return std::nullopt;
  const PlannedStep range = setup_->steps.at(step_);
  if (in_step_ == 0) step_bytes_ = batches_->step_bytes(range);
  const MicroBatchId id{range.epoch, range.first + in_step_};
  const WorkUnit unit{id, step_, batches_->feature_bytes(id), step_bytes_};
  if (++in_step_ == range.count) {
    in_step_ = 0;
    ++step_;
  }
  return unit;
}

}  // namespace percheron
