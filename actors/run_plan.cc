#include "actors/run_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "actors/batch_source.h"
#include "actors/offline_check.h"
#include "actors/offline_setup.h"
#include "actors/setting_notes.h"
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

Result<Features> count_capture(Context& context, const RunSetup& setup, Target& target,
                               const MicroBatch& batch) {
  return capture_features(context, target, batch, setup.features.dtype,
                          setup.features.has_top1 ? Top1::kYes : Top1::kNo);
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

Status count_memory(const std::shared_ptr<const RunSetup>& setup, FileSystem& files,
                    RunPlan& plan) {
  BatchSource batches(setup, system_clock());
  const RunData& data = setup->data;
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<CountingDevice> device, CountingDevice::open());
  TargetOptions options;
  options.compute_dtype = setup->target_dtype;
  options.capture = setup->drafter.capture;
  options.capture_last = setup->features.has_last;
  options.layers = setup->config.features().from().empty();
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<Target> target,
      Target::load(files, setup->config.target().path(), device->context(), options));
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<OfflineFeatures> offline,
                             open_offline_features(*setup, files, target->weights_hash(), ""));
  if (offline) plan.offline = offline->coverage();
  if (target_must_run(*setup, offline.get())) {
    PERCHERON_RETURN_IF_ERROR(target->load_layers(device->context()));
  }
  if (offline && !offline->peer_files().empty()) {
    PERCHERON_RETURN_IF_ERROR(
        live_states(device->context(), *target, offline->peer_files()).status());
  }
  const MicroBatch batch =
      largest_batch(batches, 0, EpochPlan::make(data.selection, data.options, 0));
  Features features = blank_features(*setup, batch);
  if (!offline || offline->coverage().missing() > 0) {
    PERCHERON_ASSIGN_OR_RETURN(features, count_capture(device->context(), *setup, *target, batch));
  }
  std::optional<Features> held_out;
  if (data.held_out) {
    const MicroBatch measured = largest_batch(
        batches, kHeldOutEpoch, EpochPlan::make(data.held_out_selection, data.held_out_options, 0));
    PERCHERON_ASSIGN_OR_RETURN(held_out,
                               count_capture(device->context(), *setup, *target, measured));
  }
  const uint64_t target_bytes = device->bytes();
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<CountingDevice> other, CountingDevice::open());
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<DrafterTrainer> trainer,
                             DrafterTrainer::make(other->context(), files, setup, *target));
  for (const auto& parameter : trainer->drafter().parameters()) {
    (parameter->trainable ? plan.trained_parameters : plan.frozen_parameters) +=
        parameter->value.view().elements();
  }
  PERCHERON_RETURN_IF_ERROR(count_training(other->context(), *trainer, features, held_out));
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
  if (!data.tokenizer_note.empty()) plan.notes.push_back(data.tokenizer_note);
  if (!data.template_note.empty()) plan.notes.push_back(data.template_note);
  if (!setup.draft_vocabulary_note.empty()) plan.notes.push_back(setup.draft_vocabulary_note);
  for (std::string& note : setting_notes(setup)) plan.notes.push_back(std::move(note));
  if (data.selection.unsupervised_dropped > 0) {
    plan.notes.push_back(count(data.selection.unsupervised_dropped) +
                         " samples without a supervised token are dropped");
  }
  if (data.selection.truncated + data.selection.too_long_skipped > 0) {
    plan.notes.push_back(fmt::format("{} samples are cut and {} skipped at data.token_budget",
                                     count(data.selection.truncated),
                                     count(data.selection.too_long_skipped)));
  }
  if (data.held_out_left_out > 0) {
    plan.notes.push_back(
        count(data.held_out_left_out) +
        " held-out samples are left out: evaluate.feature_bytes_max has no room for them");
  }
  if (data.held_out_in_training > 0) {
    plan.notes.push_back(count(data.held_out_in_training) +
                         " held-out samples are also trained on");
  }
  const uint64_t cache = features.cache_memory_bytes_max() + features.cache_disk_bytes_max();
  const uint64_t in_files = plan.offline ? plan.offline->file_bytes : 0;
  const uint64_t made =
      plan.feature_bytes_per_epoch - std::min(in_files, plan.feature_bytes_per_epoch);
  const bool all_in_files = plan.offline && plan.offline->missing() == 0;
  if (plan.epochs > 1 && !all_in_files && cache < made) {
    plan.notes.push_back(fmt::format(
        "the features of an epoch need {}{}, features.cache_* keeps {}: the rest is made anew each "
        "epoch",
        format_bytes(made), in_files > 0 ? " beside those in files" : "", format_bytes(cache)));
  }
}

bool has_own_memory(DeviceId id) { return id.kind == DeviceKind::kCuda; }

// What this machine has of the run's devices, with a note on each that is not there or not fast.
MachineMemory look_at_devices(const RunSetup& setup, RunPlan& plan) {
  MachineMemory memory;
  const bool bf16 = setup.target_dtype == DType::kBf16 || setup.drafter_dtype == DType::kBf16;
  for (const DevicePlan& device : plan.devices) {
    const Result<std::unique_ptr<Device>> opened =
        open_device(device.id, setup.placement.device_options());
    if (!opened.ok()) {
      plan.notes.push_back(opened.status().message());
      continue;
    }
    const DeviceInfo& info = (*opened)->info();
    if (has_own_memory(device.id)) memory.devices[device.id] = info.memory_bytes;
    if (bf16 && !info.native_bf16) {
      plan.notes.push_back("on " + to_string(device.id) +
                           " bf16 is a storage type: products run in f32");
    }
  }
  const Result<std::unique_ptr<Device>> host =
      open_device({DeviceKind::kCpu, 0}, DeviceOptions{setup.placement.threads});
  if (host.ok()) memory.host = (*host)->info().memory_bytes;
  const proto::Features& features = setup.config.features();
  const uint64_t limits = plan.host_bytes() - setup.step_bytes_max + features.bytes_max() +
                          features.cache_memory_bytes_max();
  if (host.ok() && limits > memory.host) {
    plan.notes.push_back(fmt::format(
        "when features.bytes_max and features.cache_memory_bytes_max are used up the run takes {}, "
        "but the host's memory is {}",
        format_bytes(limits), format_bytes(memory.host)));
  }
  return memory;
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
  const EpochPlan first = EpochPlan::make(setup.data.selection, setup.data.options, 0);
  plan.fill = first.fill();
  plan.efficiency = first.efficiency();
  plan.feature_bytes_per_token = setup.features.bytes(1, 0) - setup.features.bytes(0, 0);
  plan.feature_bytes_per_epoch = setup.features.bytes(first.total_tokens(), plan.samples);
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
  PERCHERON_RETURN_IF_ERROR(check_plan_fits(plan, look_at_devices(setup, plan)));
  return plan;
}

Status check_plan_fits(const RunPlan& plan, const MachineMemory& memory) {
  constexpr const char* kWhatToDo =
      "use a smaller data.token_budget, fewer layers or a smaller draft vocabulary, fewer trainers "
      "on it, or another placement";
  for (const DevicePlan& device : plan.devices) {
    const auto known = memory.devices.find(device.id);
    if (known == memory.devices.end() || device.bytes() <= known->second) continue;
    return resource_exhausted(fmt::format(
        "{} would hold {} ({} targets, {} trainers), but has {} of memory: {}",
        to_string(device.id), format_bytes(device.bytes()), format_bytes(device.target_bytes),
        format_bytes(device.trainer_bytes), format_bytes(known->second), kWhatToDo));
  }
  if (memory.host == 0 || plan.host_bytes() <= memory.host) return ok_status();
  return resource_exhausted(fmt::format(
      "the run needs at least {} of host memory ({} held-out features, {} features of the largest "
      "step, the rest targets and trainers), but the machine has {}: {}, or fewer "
      "evaluate.conversations_max",
      format_bytes(plan.host_bytes()), format_bytes(plan.held_out_bytes),
      format_bytes(plan.setup->step_bytes_max), format_bytes(memory.host), kWhatToDo));
}

uint64_t RunPlan::host_bytes() const {
  uint64_t bytes = held_out_bytes + setup->step_bytes_max;
  for (const DevicePlan& device : devices) {
    if (!has_own_memory(device.id)) bytes += device.bytes();
  }
  return bytes;
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
  if (is_padded(setup->data.options.order)) {
    text += fmt::format("order       {}; {:.1f} % of the tokens are padding\n",
                        epoch_order_name(setup->data.options.order), 100 * (1 - efficiency));
  }
  text += fmt::format("run         {} steps of {} micro-batches, {} epochs, {} micro-batches\n",
                      count(steps), setup->steps.micro_batches_per_step(), epochs,
                      count(micro_batches));
  text += fmt::format("schedule    {}\n", schedule_text(*setup));
  text += fmt::format(
      "features    {} a token, {} an epoch; the largest step {} of features.bytes_max {}\n",
      format_bytes(feature_bytes_per_token), format_bytes(feature_bytes_per_epoch),
      format_bytes(setup->step_bytes_max), format_bytes(setup->config.features().bytes_max()));
  if (offline) text += "captured    " + coverage_text(*setup, *offline) + "\n";
  if (held_out_bytes > 0) {
    text += fmt::format(
        "held out    {} samples, {} of features in host memory of evaluate.feature_bytes_max {}\n",
        count(static_cast<int64_t>(setup->data.held_out_selection.samples.size())),
        format_bytes(held_out_bytes), format_bytes(setup->config.evaluate().feature_bytes_max()));
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
