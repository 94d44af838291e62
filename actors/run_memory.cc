#include "actors/run_memory.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "actors/batch_source.h"
#include "actors/gradient_reduction.h"
#include "actors/offline_check.h"
#include "actors/offline_setup.h"
#include "actors/step_trainer.h"
#include "actors/weights_comparison.h"
#include "kernels/device_collective.h"
#include "kernels/planning_device.h"
#include "model/capture_pipeline.h"
#include "model/target_files.h"

namespace percheron {
namespace {

/// A device that only counts, with what a Context needs.
class CountingDevice {
 public:
  static Result<std::unique_ptr<CountingDevice>> open() {
    PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                               open_device({DeviceKind::kPlanning, 0}, DeviceOptions{1}));
    return std::unique_ptr<CountingDevice>(new CountingDevice(std::move(device)));
  }
  Context& context() { return context_; }
  uint64_t bytes() const { return planned_bytes(*device_); }

 private:
  explicit CountingDevice(std::unique_ptr<Device> device)
      : device_(std::move(device)),
        stream_(device_->make_stream()),
        arena_(*device_),
        context_{*device_, *stream_, arena_} {}

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  Context context_;
};

// The micro-batch of the first epoch, or of the held-out data, with most tokens: it decides the
// activations.
MicroBatch largest_batch(BatchSource& batches, int64_t epoch, const EpochPlan& plan) {
  int64_t largest = 0;
  for (int64_t i = 1; i < plan.micro_batches(); ++i) {
    if (plan.tokens(i) > plan.tokens(largest)) largest = i;
  }
  return batches.make({epoch, largest});
}

// Features as files give them: as large, their values don't matter.
Features blank_features(const RunSetup& setup, const MicroBatch& batch) {
  const FeatureShape& shape = setup.features;
  Features features;
  features.batch = batch;
  features.dtype = shape.dtype;
  features.slots = shape.slots;
  features.hidden_size = shape.hidden_size;
  features.has_last = shape.has_last;
  features.hidden_states.resize(shape.hidden_bytes(batch.tokens()));
  if (shape.has_top1) features.top1.assign(batch.token_ids.size(), setup.draft_ids.front());
  return features;
}

Result<Features> count_capture(Context& context, CapturePipeline& captures,
                               const MicroBatch& batch) {
  PERCHERON_ASSIGN_OR_RETURN(CapturePipeline::Pending pending, captures.begin(context, batch));
  return pending.finish();
}

// One step and, with held-out data, one evaluation: each takes scratch that the others don't.
Status count_training(Context& context, DrafterTrainer& trainer, const Features& features,
                      const std::optional<Features>& held_out) {
  PERCHERON_RETURN_IF_ERROR(trainer.add(context, features).status());
  StepSums sums;
  sums.weight = 1;
  PERCHERON_RETURN_IF_ERROR(trainer.apply(context, nullptr, sums, 0).status());
  return held_out ? trainer.evaluate(context, *held_out).status() : ok_status();
}

/// The target's work in a run, counted once for each kind of rank.
class TargetCount {
 public:
  TargetCount(const RunSetup& setup, FileSystem& files, BatchSource& batches)
      : setup_(setup), files_(files), batches_(batches) {}

  /// Opens the target and counts rank 0's work; fills plan.offline.
  Status count_first(RunPlan& plan);
  /// Bytes of a rank of its group, which has the head where it is rank 0 or `head`.
  Result<uint64_t> bytes(int rank, bool head);

  // Of rank 0.
  const Target& target() const { return *target_; }
  const Features& features() const { return *features_; }
  const std::optional<Features>& held_out() const { return held_out_; }

 private:
  TargetOptions options(int rank, bool head) const;
  /// A full layer is beside those of 8 bits while they are compared.
  Status count_comparison(Context& context, Target& target) const {
    if (setup_.target_weights == WeightFormat::kFull) return ok_status();
    if (!target_must_run(setup_, offline_.get())) return ok_status();
    return target.compare_weights(context, comparison_rows(setup_)).status();
  }
  Result<uint64_t> count_other(bool head);
  std::optional<MicroBatch> held_out_batch();

  const RunSetup& setup_;
  FileSystem& files_;
  BatchSource& batches_;
  std::shared_ptr<const TargetFiles> opened_;
  DeviceCollectives collectives_;
  std::unique_ptr<OfflineFeatures> offline_;
  std::unique_ptr<CountingDevice> device_;
  std::unique_ptr<Target> target_;
  std::optional<Features> features_, held_out_;
  std::map<bool, uint64_t> other_bytes_;  // of ranks but the first, by whether they have the head
};

TargetOptions TargetCount::options(int rank, bool head) const {
  TargetOptions options;
  options.compute_dtype = setup_.target_dtype;
  options.weights = setup_.target_weights;
  options.capture = setup_.drafter.capture;
  options.capture_last = setup_.features.has_last;
  options.layers = setup_.config.features().from().empty();
  options.head = head;
  options.shard = {rank, setup_.placement.tensor_parallel,
                   collectives_[static_cast<size_t>(rank)].get()};
  return options;
}

std::optional<MicroBatch> TargetCount::held_out_batch() {
  const RunData& data = setup_.data;
  if (!data.held_out) return std::nullopt;
  return largest_batch(batches_, kHeldOutEpoch,
                       EpochPlan::make(data.held_out_selection, data.held_out_options, 0));
}

Status TargetCount::count_first(RunPlan& plan) {
  PERCHERON_ASSIGN_OR_RETURN(
      opened_, open_target_files(files_, setup_.config.target().path(), setup_.target));
  const std::vector<DeviceId> ranks(static_cast<size_t>(setup_.placement.tensor_parallel),
                                    {DeviceKind::kPlanning, 0});
  PERCHERON_ASSIGN_OR_RETURN(collectives_, make_device_collectives(ranks, {}));
  PERCHERON_ASSIGN_OR_RETURN(device_, CountingDevice::open());
  Context& context = device_->context();
  PERCHERON_ASSIGN_OR_RETURN(target_, Target::load(opened_, context, options(0, true)));
  PERCHERON_ASSIGN_OR_RETURN(offline_,
                             open_offline_features(setup_, files_, target_->weights_hash(), ""));
  if (offline_) plan.offline = offline_->coverage();
  if (target_must_run(setup_, offline_.get())) {
    PERCHERON_RETURN_IF_ERROR(target_->load_layers(context));
  }
  PERCHERON_RETURN_IF_ERROR(count_comparison(context, *target_));
  if (offline_ && !offline_->peer_files().empty()) {
    PERCHERON_RETURN_IF_ERROR(live_states(context, *target_, offline_->peer_files()).status());
  }
  const RunData& data = setup_.data;
  const MicroBatch batch =
      largest_batch(batches_, 0, EpochPlan::make(data.selection, data.options, 0));
  features_ = blank_features(setup_, batch);
  CapturePipeline captures(*target_, setup_.features.dtype,
                           setup_.features.has_top1 ? Top1::kYes : Top1::kNo, setup_.tokens_max);
  if (!offline_ || offline_->coverage().missing() > 0) {
    PERCHERON_ASSIGN_OR_RETURN(features_, count_capture(context, captures, batch));
  }
  if (const std::optional<MicroBatch> measured = held_out_batch()) {
    PERCHERON_ASSIGN_OR_RETURN(held_out_, count_capture(context, captures, *measured));
  }
  return ok_status();
}

Result<uint64_t> TargetCount::bytes(int rank, bool head) {
  if (rank == 0) return device_->bytes();
  const auto known = other_bytes_.find(head);
  if (known != other_bytes_.end()) return known->second;
  PERCHERON_ASSIGN_OR_RETURN(const uint64_t bytes, count_other(head));
  return other_bytes_[head] = bytes;
}

// Another rank runs the same layers over the same rows, and keeps nothing of them.
Result<uint64_t> TargetCount::count_other(bool head) {
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<CountingDevice> device, CountingDevice::open());
  Context& context = device->context();
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Target> target,
                             Target::load(opened_, context, options(1, head)));
  if (target_must_run(setup_, offline_.get())) {
    PERCHERON_RETURN_IF_ERROR(target->load_layers(context));
  }
  PERCHERON_RETURN_IF_ERROR(count_comparison(context, *target));
  if (offline_ && !offline_->peer_files().empty()) {
    PERCHERON_RETURN_IF_ERROR(live_states(context, *target, offline_->peer_files()).status());
  }
  std::vector<MicroBatch> passes;
  if (!offline_ || offline_->coverage().missing() > 0) passes.push_back(features_->batch);
  if (held_out_) passes.push_back(held_out_->batch);
  for (const MicroBatch& batch : passes) {
    const PackedSequences rows{{batch.token_ids.begin(), batch.token_ids.end()}, batch.offsets, {}};
    const Arena::Scope scope(context.arena);
    const TensorView last =
        setup_.features.has_top1
            ? context.arena.take(DType::kF32, {batch.tokens(), setup_.target.hidden_size})
            : TensorView();
    PERCHERON_RETURN_IF_ERROR(target->forward(context, rows, nullptr, {}, last));
  }
  return device->bytes();
}

}  // namespace

Status count_memory(FileSystem& files, RunPlan& plan) {
  const RunSetup& setup = *plan.setup;
  BatchSource batches(plan.setup, system_clock());
  TargetCount target(setup, files, batches);
  PERCHERON_RETURN_IF_ERROR(target.count_first(plan));
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<CountingDevice> device, CountingDevice::open());
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<DrafterTrainer> trainer,
      DrafterTrainer::make(device->context(), files, plan.setup, target.target()));
  for (const auto& parameter : trainer->drafter().parameters()) {
    (parameter->trainable ? plan.trained_parameters : plan.frozen_parameters) +=
        parameter->value.view().elements();
  }
  PERCHERON_RETURN_IF_ERROR(
      count_training(device->context(), *trainer, target.features(), target.held_out()));
  uint64_t trainer_bytes = device->bytes();
  if (host_sum_reason(setup.placement, setup.assignment).empty()) {
    trainer_bytes += static_cast<uint64_t>(plan.trained_parameters) * dtype_bytes(DType::kF32);
  }
  for (DevicePlan& place : plan.devices) {
    if (place.targets > 0) {
      const bool lends = place.trainers > 0 && place.id.kind != DeviceKind::kCpu;
      PERCHERON_ASSIGN_OR_RETURN(place.target_bytes, target.bytes(place.rank, lends));
    }
    place.trainer_bytes = trainer_bytes * static_cast<uint64_t>(place.trainers);
  }
  return ok_status();
}

}  // namespace percheron
