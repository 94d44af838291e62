#include "actors/run_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "actors/gradient_reduction.h"
#include "actors/offline_setup.h"
#include "actors/run_memory.h"
#include "actors/setting_notes.h"
#include "base/units.h"
#include "model/target_files.h"

namespace percheron {
namespace {

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

std::vector<DevicePlan> plan_devices(const PlacementPlan& placement) {
  std::vector<DevicePlan> devices;
  for (DeviceId id : placement.devices()) {
    DevicePlan device;
    device.id = id;
    const auto on = [id](const std::vector<DeviceId>& ids) {
      return static_cast<int>(std::count(ids.begin(), ids.end(), id));
    };
    device.targets = on(placement.targets);
    device.trainers = on(placement.trainers);
    for (const std::vector<DeviceId>& group : placement.target_groups()) {
      const auto found = std::find(group.begin(), group.end(), id);
      if (found == group.end()) continue;
      device.rank = static_cast<int>(found - group.begin());
      device.ranks = static_cast<int>(group.size());
    }
    // CPU devices share the host's memory, so their trainers borrow from any CPU's target.
    const bool cpu = id.kind == DeviceKind::kCpu;
    const bool lent = std::any_of(
        placement.targets.begin(), placement.targets.end(),
        [&](DeviceId other) { return other == id || (cpu && other.kind == DeviceKind::kCpu); });
    device.borrows = device.trainers > 0 && !lent;
    devices.push_back(device);
  }
  return devices;
}

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
  plan.devices = plan_devices(setup.placement);
  PERCHERON_ASSIGN_OR_RETURN(const std::shared_ptr<const TargetFiles> target,
                             open_target_files(files, setup.config.target().path(), setup.target));
  PERCHERON_RETURN_IF_ERROR(count_memory(files, plan, target));
  add_notes(setup, plan);
  PERCHERON_RETURN_IF_ERROR(check_plan_fits(plan, look_at_devices(setup, plan)));
  return plan;
}

Status check_plan_fits(const RunPlan& plan, const MachineMemory& memory) {
  constexpr const char* kWhatToDo =
      "use a smaller data.token_budget or loss.workspace_bytes, fewer layers or a smaller draft "
      "vocabulary, fewer trainers on it, or another placement";
  for (const DevicePlan& device : plan.devices) {
    const auto known = memory.devices.find(device.id);
    if (known == memory.devices.end() || device.bytes() <= known->second) continue;
    return resource_exhausted(fmt::format(
        "{} would hold {} ({} targets, {} trainers, {} scratch memory), but has {} of memory: {}",
        to_string(device.id), format_bytes(device.bytes()), format_bytes(device.target_bytes),
        format_bytes(device.trainer_bytes), format_bytes(device.scratch_bytes),
        format_bytes(known->second), kWhatToDo));
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
    bytes += device.pinned_bytes + (has_own_memory(device.id) ? 0 : device.bytes());
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
  if (setup->placement.trainers.size() > 1) {
    const std::string reason = host_sum_reason(setup->placement, setup->assignment);
    text += "gradients   " + gradient_sums_text(reason, kGradientBucketBytes) + "\n";
  }
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
  if (setup->target_weights != WeightFormat::kFull) {
    text += fmt::format("target      layers in {}, one scale per output channel\n",
                        weight_format_name(setup->target_weights));
  }
  for (const DevicePlan& device : devices) {
    const bool cpu = device.id.kind == DeviceKind::kCpu;
    const std::string targets =
        device.ranks == 1 ? fmt::format("{} target(s)", device.targets)
                          : fmt::format("target, rank {} of {},", device.rank, device.ranks);
    text +=
        fmt::format("{:<11} {} {}, {} trainer(s) {}, scratch {}{}\n", to_string(device.id), targets,
                    format_bytes(device.target_bytes), device.trainers,
                    format_bytes(device.trainer_bytes), format_bytes(device.scratch_bytes),
                    cpu ? fmt::format("; {} thread(s)", setup->placement.threads)
                        : "; host: " + format_bytes(device.pinned_bytes) + " pinned for copies");
  }
  for (const std::string& note : notes) text += "note        " + note + "\n";
  return text;
}

}  // namespace percheron
