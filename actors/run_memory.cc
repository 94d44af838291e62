#include "actors/run_memory.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

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

/// Bytes that stay, the most that is taken from an arena at a time, and those of the host that the
/// device copies from and to.
struct CountedBytes {
  uint64_t kept = 0, scratch = 0, pinned = 0;
};

/// A device that only counts, with what a Context needs.
class CountingDevice {
 public:
  /// Counts what `kind` takes.
  static Result<std::unique_ptr<CountingDevice>> open(DeviceKind kind,
                                                      const PlacementPlan& placement) {
    DeviceOptions options = placement.device_options();
    options.threads = 1;
    options.planned = kind == DeviceKind::kCpu ? DeviceKind::kCpu : DeviceKind::kCuda;
    PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                               open_device({DeviceKind::kPlanning, 0}, options));
    PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<Device> scratch,
                               open_device({DeviceKind::kPlanning, 1}, options));
    return std::unique_ptr<CountingDevice>(
        new CountingDevice(std::move(device), std::move(scratch)));
  }
  Context& context() { return context_; }
  CountedBytes counted() const {
    return {planned_bytes(*device_), arena_.bytes_peak(), planned_host_bytes(*device_)};
  }

 private:
  CountingDevice(std::unique_ptr<Device> device, std::unique_ptr<Device> scratch)
      : device_(std::move(device)),
        scratch_(std::move(scratch)),
        stream_(device_->make_stream()),
        arena_(*scratch_),
        context_{*device_, *stream_, arena_} {}

  std::unique_ptr<Device> device_, scratch_;  // the arena's blocks are counted apart
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  Context context_;
};

// The held-out micro-batch with most tokens.
std::optional<MicroBatch> largest_held_out(const RunSetup& setup, BatchSource& batches) {
  const RunData& data = setup.data;
  if (!data.held_out) return std::nullopt;
  const EpochPlan plan = EpochPlan::make(data.held_out_selection, data.held_out_options, 0);
  int64_t largest = 0;
  for (int64_t i = 1; i < plan.micro_batches(); ++i) {
    if (plan.tokens(i) > plan.tokens(largest)) largest = i;
  }
  return batches.make({kHeldOutEpoch, largest});
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
  const int32_t id = setup.draft_ids.empty() ? 0 : setup.draft_ids.front();
  if (shape.has_top1) features.top1.assign(batch.token_ids.size(), id);
  return features;
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

/// What a run takes on devices of one kind, each kind of rank counted once.
class KindCount {
 public:
  KindCount(const RunSetup& setup, std::shared_ptr<const TargetFiles> opened,
            const OfflineFeatures* offline, DeviceKind kind)
      : setup_(setup), opened_(std::move(opened)), offline_(offline), kind_(kind) {}

  /// The micro-batches that decide.
  Status begin(const MicroBatch& largest, const std::optional<MicroBatch>& held_out);
  /// A rank of the target's group, which has the head where it is rank 0 or `head`.
  Result<CountedBytes> target(int rank, bool head);
  /// What a trainer borrows where no target is.
  Result<CountedBytes> lender();
  /// A trainer, beside what it borrows; fills in the plan's parameters.
  Result<CountedBytes> trainer(FileSystem& files, RunPlan& plan);

 private:
  TargetOptions options(int rank, bool head) const;
  Status run_target(Context& context, Target& target, int rank);
  /// A full layer is beside those of 8 bits while they are compared.
  Status count_comparison(Context& context, Target& target) const {
    if (setup_.target_weights == WeightFormat::kFull) return ok_status();
    if (!target_must_run(setup_, offline_)) return ok_status();
    return target.compare_weights(context, comparison_rows(setup_)).status();
  }

  const RunSetup& setup_;
  const std::shared_ptr<const TargetFiles> opened_;
  const OfflineFeatures* const offline_;
  const DeviceKind kind_;
  DeviceCollectives collectives_;
  Features features_;  // of the largest micro-batch
  std::optional<Features> held_out_;
  std::map<std::pair<bool, bool>, CountedBytes> targets_;  // by whether rank 0, with the head
  std::optional<CountedBytes> lender_, trainer_;
};

Status KindCount::begin(const MicroBatch& largest, const std::optional<MicroBatch>& held_out) {
  features_ = blank_features(setup_, largest);
  if (held_out) held_out_ = blank_features(setup_, *held_out);
  const std::vector<DeviceId> ranks(static_cast<size_t>(setup_.placement.tensor_parallel),
                                    {DeviceKind::kPlanning, 0});
  PERCHERON_ASSIGN_OR_RETURN(collectives_, make_device_collectives(ranks, {}));
  return ok_status();
}

TargetOptions KindCount::options(int rank, bool head) const {
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

Result<CountedBytes> KindCount::target(int rank, bool head) {
  const auto [known, unknown] = targets_.try_emplace({rank == 0, head});
  if (!unknown) return known->second;
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<CountingDevice> device,
                             CountingDevice::open(kind_, setup_.placement));
  Context& context = device->context();
  // All ranks but the first are alike.
  const int counted = rank == 0 ? 0 : 1;
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Target> target,
                             Target::load(opened_, context, options(counted, head)));
  if (target_must_run(setup_, offline_)) {
    PERCHERON_RETURN_IF_ERROR(target->load_layers(context));
  }
  PERCHERON_RETURN_IF_ERROR(count_comparison(context, *target));
  if (offline_ != nullptr && !offline_->peer_files().empty()) {
    PERCHERON_RETURN_IF_ERROR(live_states(context, *target, offline_->peer_files()).status());
  }
  PERCHERON_RETURN_IF_ERROR(run_target(context, *target, counted));
  return known->second = device->counted();
}

// A rank but the first runs the same layers over the same rows, and keeps nothing of them.
Status KindCount::run_target(Context& context, Target& target, int rank) {
  std::vector<const MicroBatch*> passes;
  if (offline_ == nullptr || offline_->coverage().missing() > 0) passes.push_back(&features_.batch);
  if (held_out_) passes.push_back(&held_out_->batch);
  const FeatureShape& shape = setup_.features;
  CapturePipeline captures(target, shape.dtype, shape.has_top1 ? Top1::kYes : Top1::kNo,
                           setup_.tokens_max);
  for (const MicroBatch* batch : passes) {
    if (rank == 0) {
      PERCHERON_ASSIGN_OR_RETURN(CapturePipeline::Pending pending, captures.begin(context, *batch));
      PERCHERON_RETURN_IF_ERROR(pending.finish().status());
      continue;
    }
    const PackedSequences rows{
        {batch->token_ids.begin(), batch->token_ids.end()}, batch->offsets, {}};
    const Arena::Scope scope(context.arena);
    const TensorView last =
        shape.has_top1
            ? context.arena.take(DType::kF32, {batch->tokens(), setup_.target.hidden_size})
            : TensorView();
    PERCHERON_RETURN_IF_ERROR(target.forward(context, rows, nullptr, {}, last));
  }
  return ok_status();
}

Result<CountedBytes> KindCount::lender() {
  if (lender_) return *lender_;
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<CountingDevice> device,
                             CountingDevice::open(kind_, setup_.placement));
  TargetOptions without_layers = options(0, true);
  without_layers.layers = false;
  without_layers.shard = {};
  PERCHERON_RETURN_IF_ERROR(Target::load(opened_, device->context(), without_layers).status());
  lender_ = device->counted();
  return *lender_;
}

Result<CountedBytes> KindCount::trainer(FileSystem& files, RunPlan& plan) {
  if (trainer_) return *trainer_;
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<CountingDevice> lending,
                             CountingDevice::open(kind_, setup_.placement));
  TargetOptions without_layers = options(0, true);
  without_layers.layers = false;
  without_layers.shard = {};
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Target> target,
                             Target::load(opened_, lending->context(), without_layers));
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<CountingDevice> device,
                             CountingDevice::open(kind_, setup_.placement));
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<DrafterTrainer> trainer,
                             DrafterTrainer::make(device->context(), files, plan.setup, *target));
  plan.trained_parameters = plan.frozen_parameters = 0;
  for (const auto& parameter : trainer->drafter().parameters()) {
    (parameter->trainable ? plan.trained_parameters : plan.frozen_parameters) +=
        parameter->value.view().elements();
  }
  PERCHERON_RETURN_IF_ERROR(count_training(device->context(), *trainer, features_, held_out_));
  trainer_ = device->counted();
  if (host_sum_reason(setup_.placement, setup_.assignment).empty()) {
    trainer_->kept += static_cast<uint64_t>(plan.trained_parameters) * dtype_bytes(DType::kF32);
  }
  return *trainer_;
}

Status count_place(FileSystem& files, KindCount& count, RunPlan& plan, DevicePlan& place) {
  const bool cpu = place.id.kind == DeviceKind::kCpu;
  uint64_t scratch = 0;
  CountedBytes counted;
  if (place.targets > 0) {
    PERCHERON_ASSIGN_OR_RETURN(
        counted, count.target(place.rank, place.rank == 0 || (place.trainers > 0 && !cpu)));
  } else if (place.borrows) {
    PERCHERON_ASSIGN_OR_RETURN(counted, count.lender());
  }
  const auto others = static_cast<uint64_t>(std::max(place.targets, 1) - 1);
  // Further targets share the weights; their captures are as large on the device as where they are
  // copied to.
  place.target_bytes = counted.kept + others * counted.pinned;
  place.pinned_bytes = counted.pinned * (others + 1);
  scratch = counted.scratch;
  if (place.trainers > 0) {
    PERCHERON_ASSIGN_OR_RETURN(counted, count.trainer(files, plan));
    place.trainer_bytes = counted.kept * static_cast<uint64_t>(place.trainers);
    place.pinned_bytes += counted.pinned * static_cast<uint64_t>(place.trainers);
    // They take turns on the device's worker, and so in its scratch memory.
    scratch = std::max(scratch, counted.scratch);
  }
  place.scratch_bytes = scratch_to_reserve(scratch);
  return ok_status();
}

}  // namespace

uint64_t scratch_to_reserve(uint64_t counted) { return counted + counted / 16; }

Status count_memory(FileSystem& files, RunPlan& plan, std::shared_ptr<const TargetFiles> target) {
  const RunSetup& setup = *plan.setup;
  BatchSource batches(plan.setup, system_clock());
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<OfflineFeatures> offline,
      open_offline_features(setup, files, target->weights.content_hash(), ""));
  if (offline) plan.offline = offline->coverage();
  const MicroBatch largest = batches.make(setup.largest_micro_batch);
  const std::optional<MicroBatch> held_out = largest_held_out(setup, batches);
  std::map<DeviceKind, KindCount> counts;
  for (DevicePlan& place : plan.devices) {
    const auto [count, added] =
        counts.try_emplace(place.id.kind, setup, target, offline.get(), place.id.kind);
    if (added) PERCHERON_RETURN_IF_ERROR(count->second.begin(largest, held_out));
    PERCHERON_RETURN_IF_ERROR(count_place(files, count->second, plan, place));
  }
  return ok_status();
}

}  // namespace percheron
