#include "actors/run_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "actors/batch_source.h"
#include "actors/step_trainer.h"
#include "base/units.h"
#include "kernels/planning_device.h"

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

// The micro-batch of the first epoch with most tokens: it decides the activations.
MicroBatch largest_batch(const RunSetup& setup, BatchSource& batches) {
  const EpochPlan plan = EpochPlan::make(setup.data.selection, setup.data.options, 0);
  int64_t largest = 0;
  for (int64_t i = 1; i < plan.micro_batches(); ++i) {
    if (plan.tokens(i) > plan.tokens(largest)) largest = i;
  }
  return batches.make({0, largest});
}

Status count_memory(const std::shared_ptr<const RunSetup>& setup, FileSystem& files,
                    RunPlan& plan) {
  BatchSource batches(setup);
  const MicroBatch batch = largest_batch(*setup, batches);
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<CountingDevice> device, CountingDevice::open());
  TargetOptions options;
  options.compute_dtype = setup->target_dtype;
  options.capture = setup->drafter.capture;
  options.capture_last = setup->features.has_last;
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<Target> target,
      Target::load(files, setup->config.target().path(), device->context(), options));
  PERCHERON_ASSIGN_OR_RETURN(
      const Features features,
      capture_features(device->context(), *target, batch, setup->features.dtype,
                       setup->features.has_top1 ? Top1::kYes : Top1::kNo));
  const uint64_t target_bytes = device->bytes();
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<CountingDevice> other, CountingDevice::open());
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<DrafterTrainer> trainer,
                             DrafterTrainer::make(other->context(), files, setup, *target));
  for (const auto& parameter : trainer->drafter().parameters()) {
    (parameter->trainable ? plan.trained_parameters : plan.frozen_parameters) +=
        parameter->value.view().elements();
  }
  PERCHERON_RETURN_IF_ERROR(trainer->add(other->context(), features).status());
  const uint64_t trainer_bytes = other->bytes();
  for (DevicePlan& place : plan.devices) {
    if (place.targets > 0) place.target_bytes = target_bytes;
    place.trainer_bytes = trainer_bytes * static_cast<uint64_t>(place.trainers);
  }
  return ok_status();
}

std::string schedule_text(const RunSetup& setup) {
  static constexpr const char* kShapes[] = {"cosine", "linear", "constant", "wsd"};
  const bool muon = setup.optimizer.kind == OptimizerKind::kMuon;
  return fmt::format("{}, peak rate {}{}, {} warm-up steps, {} to {} of the peak",
                     muon ? "muon" : "adamw", setup.optimizer.learning_rate,
                     muon ? fmt::format(" (matrices {})", setup.optimizer.muon_learning_rate) : "",
                     setup.schedule.warmup_steps, kShapes[static_cast<int>(setup.schedule.shape)],
                     setup.schedule.floor);
}

std::string count(int64_t n) { return format_count(static_cast<uint64_t>(n)); }

void add_notes(const RunSetup& setup, RunPlan& plan) {
  const RunData& data = setup.data;
  const proto::Features& features = setup.config.features();
  if (data.selection.unsupervised_dropped > 0) {
    plan.notes.push_back(count(data.selection.unsupervised_dropped) +
                         " samples without a supervised token are dropped");
  }
  if (data.selection.truncated + data.selection.too_long_skipped > 0) {
    plan.notes.push_back(fmt::format("{} samples are cut and {} skipped at data.token_budget",
                                     count(data.selection.truncated),
                                     count(data.selection.too_long_skipped)));
  }
  if (data.held_out_in_training > 0) {
    plan.notes.push_back(count(data.held_out_in_training) +
                         " held-out samples are also trained on");
  }
  const uint64_t cache = features.cache_memory_bytes_max() + features.cache_disk_bytes_max();
  if (plan.epochs > 1 && cache < plan.feature_bytes_per_epoch) {
    plan.notes.push_back(fmt::format(
        "the features of an epoch need {}, features.cache_* keeps {}: the rest is made anew each "
        "epoch",
        format_bytes(plan.feature_bytes_per_epoch), format_bytes(cache)));
  }
  const bool bf16 = setup.target_dtype == DType::kBf16 || setup.drafter_dtype == DType::kBf16;
  for (const DevicePlan& device : plan.devices) {
    const Result<std::unique_ptr<Device>> opened =
        open_device(device.id, DeviceOptions{setup.placement.threads});
    if (!opened.ok()) {
      plan.notes.push_back(opened.status().message());
    } else if (bf16 && !(*opened)->info().native_bf16) {
      plan.notes.push_back("on " + to_string(device.id) +
                           " bf16 is a storage type: products run in f32");
    }
  }
}

}  // namespace

Result<RunPlan> plan_run(const RunSetup& setup, FileSystem& files) {
  RunPlan plan;
  plan.setup = std::make_shared<const RunSetup>(setup);
  plan.steps = setup.steps.steps();
  plan.epochs = setup.steps.epochs();
  for (int64_t epoch = 0; epoch < plan.epochs; ++epoch) {
    plan.micro_batches += setup.steps.micro_batches(epoch);
  }
  plan.samples = static_cast<int64_t>(setup.data.selection.samples.size());
  plan.tokens = setup.data.selection.tokens;
  plan.fill = EpochPlan::make(setup.data.selection, setup.data.options, 0).fill();
  plan.feature_bytes_per_token = setup.features.bytes(1, 0) - setup.features.bytes(0, 0);
  plan.feature_bytes_per_epoch = setup.features.bytes(plan.tokens, plan.samples);
  if (setup.data.held_out) {
    plan.held_out_bytes =
        setup.features.bytes(setup.data.held_out_selection.tokens,
                             static_cast<int64_t>(setup.data.held_out_selection.samples.size()));
  }
  for (DeviceId id : setup.placement.devices()) {
    DevicePlan device{id, 0, 0, 0, 0};
    const auto on = [id](const std::vector<DeviceId>& ids) {
      return static_cast<int>(std::count(ids.begin(), ids.end(), id));
    };
    device.targets = on(setup.placement.targets);
    device.trainers = on(setup.placement.trainers);
    plan.devices.push_back(device);
  }
  PERCHERON_RETURN_IF_ERROR(count_memory(plan.setup, files, plan));
  add_notes(setup, plan);
  return plan;
}

std::string RunPlan::text() const {
  const bool eagle3 = setup->drafter.kind == DrafterKind::kEagle3;
  std::string text;
  text += fmt::format("drafter     {}, {} layer(s), captured states {}, {} of {} tokens drafted\n",
                      eagle3 ? "EAGLE-3" : "DFlash", setup->drafter.body.num_hidden_layers,
                      fmt::join(setup->drafter.capture, "/"),
                      count(setup->drafter.draft_vocab_size), count(setup->target.vocab_size));
  text += fmt::format("parameters  {} trained, {} frozen\n", count(trained_parameters),
                      count(frozen_parameters));
  text += fmt::format("data        {} samples, {} tokens an epoch, budget {} ({:.1f} % filled)\n",
                      count(samples), count(tokens), count(setup->data.options.token_budget),
                      100 * fill);
  text += fmt::format("run         {} steps of {} micro-batches, {} epochs, {} micro-batches\n",
                      count(steps), setup->steps.micro_batches_per_step(), epochs,
                      count(micro_batches));
  text += fmt::format("schedule    {}\n", schedule_text(*setup));
  text += fmt::format(
      "features    {} a token, {} an epoch; the largest step {} of features.bytes_max {}\n",
      format_bytes(feature_bytes_per_token), format_bytes(feature_bytes_per_epoch),
      format_bytes(setup->step_bytes_max), format_bytes(setup->config.features().bytes_max()));
  if (held_out_bytes > 0) {
    text += fmt::format("held out    {} samples, {} of features in host memory\n",
                        count(static_cast<int64_t>(setup->data.held_out_selection.samples.size())),
                        format_bytes(held_out_bytes));
  }
  for (const DevicePlan& device : devices) {
    const bool cpu = device.id.kind == DeviceKind::kCpu;
    text += fmt::format("{:<11} {} target(s) {}, {} trainer(s) {}{}\n", to_string(device.id),
                        device.targets, format_bytes(device.target_bytes), device.trainers,
                        format_bytes(device.trainer_bytes),
                        cpu ? fmt::format("; {} thread(s)", setup->placement.threads) : "");
  }
  for (const std::string& note : notes) text += "note        " + note + "\n";
  return text;
}

}  // namespace percheron
