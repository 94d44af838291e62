#include "actors/step_trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "model/warm_start.h"

namespace percheron {
namespace {

std::vector<WarmStart> warm_starts(const proto::Drafter& drafter) {
  std::vector<WarmStart> parts;
  for (const int part : drafter.warm_start()) {
    switch (static_cast<proto::Drafter::WarmStart>(part)) {
      case proto::Drafter::HEAD: parts.push_back(WarmStart::kHead); break;
      case proto::Drafter::FC: parts.push_back(WarmStart::kFc); break;
      case proto::Drafter::LAYER: parts.push_back(WarmStart::kLayer); break;
    }
  }
  return parts;
}

void log_initial_values(const InitialValues& values, const char* from) {
  log_info("{} parameters start from {}", values.taken.size(), from);
  for (const std::string& left : values.left) log_info("not from {}: {}", from, left);
}

size_t trained_elements(const Drafter& drafter) {
  size_t elements = 0;
  for (const auto& parameter : drafter.parameters()) {
    if (parameter->trainable) elements += static_cast<size_t>(parameter->value.view().elements());
  }
  return elements;
}

}  // namespace

DrafterTrainer::DrafterTrainer(std::shared_ptr<const RunSetup> setup, TargetParts parts)
    : setup_(std::move(setup)), parts_(parts) {}

Result<std::unique_ptr<DrafterTrainer>> DrafterTrainer::make(Context& context, FileSystem& files,
                                                             std::shared_ptr<const RunSetup> setup,
                                                             const Target& target) {
  const TargetParts parts{target.embedding(), target.head(), target.final_norm(),
                          target.config().rms_norm_eps};
  std::unique_ptr<DrafterTrainer> trainer(new DrafterTrainer(setup, parts));
  const proto::Drafter& given = setup->config.drafter();
  PERCHERON_ASSIGN_OR_RETURN(trainer->drafter_,
                             make_drafter(context, setup->drafter, parts, setup->draft_ids,
                                          setup->drafter_dtype, given.seed()));
  if (!given.warm_start().empty()) {
    PERCHERON_ASSIGN_OR_RETURN(const InitialValues values,
                               warm_start(context, *trainer->drafter_, target, warm_starts(given)));
    log_initial_values(values, "the target");
  }
  if (given.has_init_from()) {
    PERCHERON_ASSIGN_OR_RETURN(const DrafterFile file,
                               read_drafter(files, given.init_from(), &setup->target));
    PERCHERON_ASSIGN_OR_RETURN(const InitialValues values,
                               init_from(context, *trainer->drafter_, file, parts.embedding));
    log_initial_values(values, given.init_from().c_str());
  }
  if (!context.device.info().immediate && setup->config.mailbox().prefetch_bytes() > 0) {
    PERCHERON_ASSIGN_OR_RETURN(
        trainer->upload_,
        StateUpload::make(context.device, setup->features.hidden_bytes(setup->tokens_max)));
    trainer->drafter_->look_for_states_in(trainer->upload_.get());
  }
  PERCHERON_ASSIGN_OR_RETURN(trainer->optimizer_, Optimizer::make(context, setup->optimizer,
                                                                  trainer->drafter_->parameters()));
  return trainer;
}

Status DrafterTrainer::restore(Context& context,
                               const std::map<std::string, ConstTensorView>& masters,
                               const OptimizerState& optimizer) {
  discard(context);
  PERCHERON_RETURN_IF_ERROR(load_parameters(context, *drafter_, masters));
  return optimizer_->import_state(context, optimizer);
}

Result<StepSums> DrafterTrainer::add(Context& context, const Features& features) {
  if (buckets_) buckets_->begin_pass();
  Result<StepSums> sums = drafter_->forward_backward(context, features, setup_->loss);
  if (buckets_) buckets_->complete_all(context.stream);
  if (sums.ok()) sums_.add(*sums);
  return sums;
}

Status DrafterTrainer::prepare(const FeaturesPtr& features) {
  if (!upload_) return ok_status();
  // What does not fit the drafter is add()'s to refuse.
  return upload_->put(features).with_context("states of the next micro-batch");
}

Result<StepSums> DrafterTrainer::collect(Context& context, std::vector<float>& gradients) {
  gradients.resize(trained_elements(*drafter_));
  size_t offset = 0;
  for (const auto& parameter : drafter_->parameters()) {
    if (!parameter->trainable) continue;
    const TensorView gradient = parameter->gradient.view();
    context.device.copy_bytes(context.stream, gradients.data() + offset, gradient.data(),
                              gradient.bytes());
    offset += static_cast<size_t>(gradient.elements());
  }
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  return sums_;
}

Status DrafterTrainer::sum_between_devices(Context& context, uint64_t bucket_bytes) {
  PERCHERON_ASSIGN_OR_RETURN(
      buckets_, GradientBuckets::make(context.device, drafter_->parameters(), bucket_bytes));
  drafter_->set_gradient_listener(buckets_.get());
  return ok_status();
}

// Into memory of their own, so that the gradients are whole if a member is lost before all have
// reduced.
Status DrafterTrainer::reduce(Stream& stream, DeviceCollective& collective, int64_t attempt) {
  PERCHERON_CHECK(buckets_, "gradients go through host memory");
  for (size_t bucket = 0; bucket < buckets_->count(); ++bucket) {
    if (!buckets_->wait_for(bucket, attempt, stream)) {
      return unavailable("the trainers that sum together, or their micro-batches, have changed");
    }
    collective.all_reduce_sum(stream, buckets_->at(bucket));
  }
  return ok_status();
}

Status DrafterTrainer::scatter(Context& context, const std::vector<float>& gradients) {
  size_t offset = 0;
  for (const auto& parameter : drafter_->parameters()) {
    if (!parameter->trainable) continue;
    const TensorView gradient = parameter->gradient.view();
    context.device.copy_bytes(context.stream, gradient.data(), gradients.data() + offset,
                              gradient.bytes());
    offset += static_cast<size_t>(gradient.elements());
  }
  // Not waited for: the optimizer waits for the norm of what is copied here.
  return ok_status();
}

void DrafterTrainer::discard(Context& context) {
  zero_gradients(context, drafter_->parameters());
  sums_ = StepSums();
  if (buckets_) buckets_->complete_all(context.stream);
}

Result<AppliedStep> DrafterTrainer::apply_reduced(Context& context, const StepSums& total,
                                                  int64_t step) {
  PERCHERON_CHECK(buckets_, "gradients go through host memory");
  buckets_->take_sums(context);
  return apply(context, nullptr, total, step);
}

Result<AppliedStep> DrafterTrainer::apply(Context& context, const std::vector<float>* gradients,
                                          const StepSums& total, int64_t step) {
  AppliedStep applied;
  applied.rate_factor = schedule_factor(setup_->schedule, step);
  if (!std::isfinite(total.loss) || !std::isfinite(total.weight)) {
    return data_loss(fmt::format("the loss is {} with weight {}", total.loss, total.weight));
  }
  if (total.weight <= 0) {
    discard(context);
    applied.skipped = true;
    return applied;
  }
  if (gradients) PERCHERON_RETURN_IF_ERROR(scatter(context, *gradients));
  PERCHERON_ASSIGN_OR_RETURN(applied.gradient_norm,
                             optimizer_->step(context, total.weight, applied.rate_factor));
  // The update goes on while the next micro-batch is planned; an error of it comes with that one.
  drafter_->weights_changed(context);
  sums_ = StepSums();
  return applied;
}

Result<uint32_t> DrafterTrainer::checksum(Context& context) {
  uint32_t crc = 0;
  std::vector<std::byte> bytes;
  for (const auto& parameter : drafter_->parameters()) {
    const TensorView value = parameter->value.view();
    bytes.resize(value.bytes());
    context.device.copy_bytes(context.stream, bytes.data(), value.data(), value.bytes());
    PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
    crc = crc32c(bytes, crc);
  }
  return crc;
}

Result<TrainerSnapshot> DrafterTrainer::snapshot(Context& context, int64_t step) {
  TrainerSnapshot snapshot;
  snapshot.step = step;
  PERCHERON_ASSIGN_OR_RETURN(snapshot.drafter, snapshot_drafter(context, *drafter_, parts_));
  for (const auto& parameter : drafter_->parameters()) {
    const TensorView value = parameter->value.view();
    OptimizerState::Moment& master = snapshot.masters[parameter->name];
    master.shape.assign(value.shape().begin(), value.shape().end());
    master.values.resize(static_cast<size_t>(value.elements()));
    context.device.copy_bytes(context.stream, master.values.data(), value.data(), value.bytes());
  }
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  PERCHERON_ASSIGN_OR_RETURN(snapshot.optimizer, optimizer_->export_state(context));
  return snapshot;
}

Result<WalkCounts> DrafterTrainer::evaluate(Context& context, const Features& features) {
  PERCHERON_ASSIGN_OR_RETURN(
      const std::vector<int32_t> accepted,
      accepted_at_every_position(context, *drafter_, features, setup_->draft_lengths.back()));
  WalkCounts counts;
  const MicroBatch& batch = features.batch;
  for (int64_t d = 0; d < batch.documents(); ++d) {
    const size_t begin = static_cast<size_t>(batch.offsets[d]);
    const size_t count = static_cast<size_t>(batch.offsets[d + 1]) - begin;
    counts.add(walk_answer(std::span(accepted).subspan(begin, count),
                           std::span(batch.loss_mask).subspan(begin, count),
                           setup_->draft_lengths));
  }
  return counts;
}

}  // namespace percheron
