#include "actors/train.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "actors/gradient_reduction.h"
#include "actors/offline_check.h"
#include "actors/offline_feature_maker.h"
#include "actors/offline_setup.h"
#include "actors/run_assembly.h"
#include "actors/run_fingerprint.h"
#include "actors/scratch_reservation.h"
#include "actors/setting_notes.h"
#include "actors/tensor_parallel_target.h"
#include "actors/weights_comparison.h"
#include "base/counted.h"
#include "base/log.h"
#include "base/units.h"
#include "data/checkpoint.h"
#include "data/directory_lock.h"
#include "model/target_files.h"

namespace percheron {
namespace {

// Trainers of one process come to a new group at once, or when their device is free again.
constexpr double kJoinSeconds = 600;

DeviceWorker* worker_of(const RunParts& parts, DeviceId id) {
  for (const auto& worker : parts.workers) {
    if (worker->info().id == id) return worker.get();
  }
  return nullptr;
}

// CPU devices share the host's memory, so their trainers may borrow from any CPU's target.
const Target* model_for_trainer(const RunParts& parts, DeviceId id) {
  const auto own = parts.lenders.find(id);
  if (own != parts.lenders.end()) return own->second;
  if (id.kind != DeviceKind::kCpu) return nullptr;
  for (const auto& [device, model] : parts.lenders) {
    if (device.kind == DeviceKind::kCpu) return model;
  }
  return nullptr;
}

// The devices of trainers that can't borrow from another device.
std::set<DeviceId> borrowing_devices(const PlacementPlan& placement) {
  std::set<DeviceId> devices;
  for (const DeviceId id : placement.trainers) {
    if (id.kind != DeviceKind::kCpu) devices.insert(id);
  }
  return devices;
}

TargetOptions target_options(const RunSetup& setup) {
  TargetOptions options;
  options.compute_dtype = setup.target_dtype;
  options.weights = setup.target_weights;
  options.capture = setup.drafter.capture;
  options.capture_last = setup.features.has_last;
  options.layers = setup.config.features().from().empty();  // else once the files were looked at
  return options;
}

Status load_whole(RunParts& parts, DeviceId id, const std::shared_ptr<const TargetFiles>& files,
                  const TargetOptions& options) {
  return worker_of(parts, id)->run([&](Context& context) -> Status {
    PERCHERON_ASSIGN_OR_RETURN(parts.models[id], Target::load(files, context, options));
    parts.lenders[id] = parts.models[id].get();
    return ok_status();
  });
}

Status load_target(RunParts& parts, const std::vector<DeviceId>& group,
                   const std::shared_ptr<const TargetFiles>& files) {
  const DeviceId id = group.front();
  if (parts.models.count(id) != 0) return ok_status();
  const RunSetup& setup = *parts.setup;
  const TargetOptions options = target_options(setup);
  if (group.size() == 1) return load_whole(parts, id, files, options);
  std::vector<DeviceWorker*> workers;
  for (const DeviceId device : group) workers.push_back(worker_of(parts, device));
  PERCHERON_ASSIGN_OR_RETURN(
      std::unique_ptr<TensorParallelTarget> target,
      TensorParallelTarget::load(files, workers, options, borrowing_devices(setup.placement)));
  for (int rank = 0; rank < target->size(); ++rank) {
    const Target& shard = target->rank(rank);
    if (shard.options().head) parts.lenders[group[static_cast<size_t>(rank)]] = &shard;
  }
  parts.models[id] = std::move(target);
  return ok_status();
}

}  // namespace

Status open_devices(RunParts& parts) {
  const PlacementPlan& placement = parts.setup->placement;
  for (DeviceId id : placement.devices()) {
    Result<std::unique_ptr<DeviceWorker>> worker =
        DeviceWorker::start(id, placement.device_options(), *parts.clock);
    if (!worker.ok()) return worker.status().with_context("placement");
    parts.workers.push_back(std::move(worker).value());
  }
  return ok_status();
}

Status load_targets(RunParts& parts) {
  const RunSetup& setup = *parts.setup;
  PERCHERON_ASSIGN_OR_RETURN(
      const std::shared_ptr<const TargetFiles> files,
      open_target_files(*parts.files, setup.config.target().path(), setup.target));
  std::vector<DeviceWorker*> workers;
  for (const auto& worker : parts.workers) workers.push_back(worker.get());
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<std::string> lines,
                             reserve_scratch(parts.setup, *parts.files, files, workers));
  for (const std::string& line : lines) log_info("{}", line);
  for (const std::vector<DeviceId>& group : setup.placement.target_groups()) {
    PERCHERON_RETURN_IF_ERROR(load_target(parts, group, files));
  }
  TargetOptions lender = target_options(setup);
  lender.layers = false;
  for (const DeviceId id : setup.placement.trainers) {
    if (model_for_trainer(parts, id)) continue;
    PERCHERON_RETURN_IF_ERROR(load_whole(parts, id, files, lender));
  }
  return ok_status();
}

namespace {

/// Refuses peers' files whose slots are not the states that they are stated to be, before anything
/// learns from them.
Status check_peers(RunParts& parts, RunObserver& observer) {
  const std::vector<PeerFiles>& files = parts.offline->peer_files();
  if (files.empty()) return ok_status();
  const DeviceId id = parts.setup->placement.targets.front();
  Target& target = *parts.models.at(id);
  return worker_of(parts, id)->run([&](Context& context) -> Status {
    PERCHERON_ASSIGN_OR_RETURN(const std::string text, check_peer_states(context, target, files));
    observer.on_event("features: " + text);
    return ok_status();
  });
}

}  // namespace

/// Looks at the files of features and loads the targets' layers where they are needed all the same.
Status open_offline(RunParts& parts, const std::string& target_hash, RunObserver& observer) {
  const RunSetup& setup = *parts.setup;
  PERCHERON_ASSIGN_OR_RETURN(
      parts.offline, open_offline_features(setup, *parts.files, target_hash, parts.fingerprint));
  if (!parts.offline) return ok_status();
  observer.on_event("features: " + coverage_text(setup, parts.offline->coverage()));
  const bool must_run = target_must_run(setup, parts.offline.get());
  for (const std::vector<DeviceId>& group : setup.placement.target_groups()) {
    Target& target = *parts.models.at(group.front());
    PERCHERON_RETURN_IF_ERROR(worker_of(parts, group.front())->run([&](Context& context) -> Status {
      PERCHERON_RETURN_IF_ERROR(tell_final_norm(context, setup, target, *parts.offline));
      return must_run ? target.load_layers(context) : ok_status();
    }));
  }
  return check_peers(parts, observer);
}

Status open_cache(RunParts& parts, const Fingerprint& fingerprint) {
  const proto::Features& given = parts.setup->config.features();
  if (given.cache_memory_bytes_max() == 0 && given.cache_disk_bytes_max() == 0) return ok_status();
  if (parts.setup->steps.epochs() < 2) return ok_status();  // Nothing would be read again.
  FeatureCacheOptions options;
  options.memory_bytes_max = given.cache_memory_bytes_max();
  options.disk_bytes_max = given.cache_disk_bytes_max();
  options.directory = given.has_cache_directory()
                          ? given.cache_directory()
                          : join_path(parts.setup->output(), "feature_cache");
  options.shape = parts.setup->features;
  options.fingerprint = fingerprint;
  options.on_foreign = given.has_cache_directory() ? FeatureCacheOptions::OnForeign::kRefuse
                                                   : FeatureCacheOptions::OnForeign::kClear;
  PERCHERON_ASSIGN_OR_RETURN(parts.cache, FeatureCache::open(*parts.files, std::move(options)));
  return ok_status();
}

Status lock_output(RunParts& parts) {
  const std::string& output = parts.setup->output();
  PERCHERON_RETURN_IF_ERROR(parts.files->create_directories(output));
  PERCHERON_ASSIGN_OR_RETURN(parts.output_lock,
                             lock_directory(*parts.files, output, "output.directory"));
  return ok_status();
}

namespace {

Status refuse_old_checkpoints(FileSystem& files, const std::string& output) {
  PERCHERON_ASSIGN_OR_RETURN(const bool held, holds_checkpoints(files, output));
  if (!held) return ok_status();
  return failed_precondition(fmt::format(
      "output.directory {} holds checkpoints and checkpoint.resume is false: give another "
      "directory, move them away, or set checkpoint.resume: true; nothing was changed",
      output));
}

// The best checkpoint that the run remembers, if it is still there.
Status settle_best(RunParts& parts, RunProgress& progress, RunObserver& observer) {
  if (!progress.best_step) return ok_status();
  PERCHERON_ASSIGN_OR_RETURN(
      const bool there, restore_best(*parts.files, parts.setup->output(), *progress.best_step));
  if (there) return ok_status();
  observer.on_event(
      fmt::format("the best checkpoint so far, of step {}, is gone: the best is chosen from now on",
                  *progress.best_step));
  progress.best_step.reset();
  progress.best_acceptance = 0;
  return ok_status();
}

}  // namespace

/// The checkpoint to go on from, if any.
Result<std::optional<ResumePoint>> find_resume_point(RunParts& parts,
                                                     const RunEnvironment& environment) {
  const RunSetup& setup = *parts.setup;
  PERCHERON_RETURN_IF_ERROR(clean_checkpoints(*parts.files, setup.output()).status());
  if (!setup.config.checkpoint().resume()) {
    PERCHERON_RETURN_IF_ERROR(refuse_old_checkpoints(*parts.files, setup.output()));
    return std::optional<ResumePoint>();
  }
  Result<LatestCheckpoint> latest = find_latest(*parts.files, setup.output());
  if (!latest.ok()) return latest.status().with_context("looking for a checkpoint to resume from");
  for (const std::string& problem : latest->problems) environment.observer.on_event(problem);
  if (!latest->checkpoint && !latest->problems.empty()) {
    return failed_precondition(fmt::format(
        "output.directory {} holds checkpoints, but none of them is complete ({}): mend or move "
        "them away, with `latest`, to begin anew, or give another directory",
        setup.output(), fmt::join(latest->problems, "; ")));
  }
  if (!latest->checkpoint) return std::optional<ResumePoint>();
  PERCHERON_ASSIGN_OR_RETURN(
      ResumePoint point,
      read_run_checkpoint(*parts.files, latest->checkpoint->path, parts.checkpoint));
  environment.observer.on_event(
      fmt::format("resuming from {} at step {}", point.path, point.progress.step));
  for (const std::string& change : point.changes) environment.observer.on_event(change);
  PERCHERON_RETURN_IF_ERROR(settle_best(parts, point.progress, environment.observer));
  return std::optional<ResumePoint>(std::move(point));
}

Status make_trainers(RunParts& parts, const std::optional<ResumePoint>& point,
                     const std::vector<int>& numbers) {
  const std::vector<DeviceId>& devices = parts.setup->placement.trainers;
  std::optional<uint32_t> checksum;
  for (size_t i = 0; i < devices.size(); ++i) {
    TrainerPlace place;
    place.worker = worker_of(parts, devices[i]);
    if (parts.collectives) {
      place.group = std::make_unique<TrainerGroup>(*parts.collectives, numbers[i]);
      place.reducer =
          std::make_unique<WorkThread>(fmt::format("reduce {}", numbers[i]), *parts.clock);
    }
    uint32_t own = 0;
    PERCHERON_RETURN_IF_ERROR(place.worker->run([&](Context& context) -> Status {
      PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<DrafterTrainer> trainer,
                                 DrafterTrainer::make(context, *parts.files, parts.setup,
                                                      *model_for_trainer(parts, devices[i])));
      if (point) {
        PERCHERON_RETURN_IF_ERROR(trainer->restore(context, point->masters, point->optimizer));
      }
      if (parts.device_groups) {
        PERCHERON_RETURN_IF_ERROR(
            trainer->sum_between_devices(context, parts.gradient_bucket_bytes));
        place.sums = std::make_unique<DeviceSums>(
            *parts.device_groups, numbers[i], *trainer->buckets(), context.device.make_stream());
        place.reducer->post([device = &context.device] { device->bind_thread(); });
      }
      PERCHERON_ASSIGN_OR_RETURN(own, trainer->checksum(context));
      place.trainer = std::move(trainer);
      if (!place.trainer->prepares()) return ok_status();
      place.uploader =
          std::make_unique<WorkThread>(fmt::format("upload {}", numbers[i]), *parts.clock);
      place.uploader->post([device = &context.device] { device->bind_thread(); });
      return ok_status();
    }));
    if (checksum && *checksum != own) {
      return internal_error(fmt::format(
          "the trainers on {} and {} start from different parameters (checksums {:08x}, {:08x})",
          to_string(devices[0]), to_string(devices[i]), *checksum, own));
    }
    checksum = own;
    parts.trainers.push_back(std::move(place));
  }
  return ok_status();
}

namespace {

std::string samples_are(int64_t count) {
  return counted(count, "sample") + (count == 1 ? " is" : " are");
}

}  // namespace

void tell_about_setup(const RunSetup& setup, const RunParts& parts, RunObserver& observer) {
  const RunData& data = setup.data;
  const auto count = [](int64_t n) { return format_count(static_cast<uint64_t>(n)); };
  if (!data.tokenizer_note.empty()) observer.on_event(data.tokenizer_note);
  if (!data.template_note.empty()) observer.on_event(data.template_note);
  if (!setup.draft_vocabulary_note.empty()) observer.on_event(setup.draft_vocabulary_note);
  for (const std::string& note : setting_notes(setup)) observer.on_event(note);
  if (data.selection.truncated > 0) {
    observer.on_event(fmt::format("{} cut to data.token_budget {}",
                                  samples_are(data.selection.truncated),
                                  data.options.token_budget));
  }
  if (data.selection.too_long_skipped > 0) {
    observer.on_event(fmt::format("{} skipped: longer than data.token_budget {}",
                                  samples_are(data.selection.too_long_skipped),
                                  data.options.token_budget));
  }
  if (data.selection.unsupervised_dropped > 0) {
    observer.on_event(fmt::format("{} dropped: without a supervised token",
                                  samples_are(data.selection.unsupervised_dropped)));
  }
  if (data.held_out_left_out > 0) {
    observer.on_event(
        fmt::format("{} held-out samples are left out: their features do not fit into "
                    "evaluate.feature_bytes_max",
                    count(data.held_out_left_out)));
  }
  if (data.held_out_in_training > 0) {
    observer.on_event(fmt::format(
        "{} of {} held-out samples are also in data.train: their acceptance flatters the drafter",
        count(data.held_out_in_training),
        count(static_cast<int64_t>(data.held_out_selection.samples.size()))));
  }
  if (!setup.draft_ids.empty()) {
    std::string text = fmt::format(
        "the draft vocabulary of {} ids covers {:.1f} % of the "
        "supervised training tokens",
        count(static_cast<int64_t>(setup.draft_ids.size())), 100 * setup.draft_coverage);
    if (data.held_out) text += fmt::format(", {:.1f} % held out", 100 * setup.held_out_coverage);
    observer.on_event(text);
  }
  for (const auto& worker : parts.workers) {
    const bool bf16 = setup.target_dtype == DType::kBf16 || setup.drafter_dtype == DType::kBf16;
    observer.on_event(fmt::format("{}: {}, {}{}", worker->name(), worker->info().description,
                                  counted(worker->info().threads, "thread"),
                                  bf16 && !worker->info().native_bf16
                                      ? "; bf16 is a storage type here, products run in f32"
                                      : ""));
  }
}

TargetPlace make_target(RunParts& parts, DeviceId id) {
  TargetPlace place;
  place.worker = worker_of(parts, id);
  Target& model = *parts.models.at(id);
  place.maker = std::make_unique<TargetFeatureMaker>(model, parts.cache.get(), *parts.quarantine,
                                                     parts.setup->features, parts.fingerprint,
                                                     parts.setup->tokens_max);
  if (parts.offline) {
    place.maker =
        std::make_unique<OfflineFeatureMaker>(*parts.offline, model, std::move(place.maker));
  }
  place.finisher = std::make_unique<WorkThread>("features", *parts.clock);
  return place;
}

Status compare_weights(RunParts& parts, RunObserver& observer) {
  const RunSetup& setup = *parts.setup;
  if (!target_must_run(setup, parts.offline.get())) return ok_status();
  const DeviceId id = setup.placement.targets.front();
  PERCHERON_ASSIGN_OR_RETURN(
      const std::optional<WeightsReport> report,
      compare_target_weights(setup, *worker_of(parts, id), *parts.models.at(id), *parts.clock));
  if (!report) return ok_status();
  parts.weights_comparison = report->comparison;
  parts.weights_note = report->text;
  observer.on_event(report->text);
  return ok_status();
}

namespace {

/// The groups by which the trainers sum their gradients between devices, the first one connected;
/// null where they go through host memory. Which it is, is said where there are several.
Result<std::unique_ptr<DeviceGroups>> connect_trainers(const RunSetup& setup,
                                                       const std::vector<int>& numbers,
                                                       const RunEnvironment& environment) {
  const std::vector<DeviceId>& devices = setup.placement.trainers;
  std::string reason = host_sum_reason(setup.placement, setup.assignment);
  if (reason.empty()) {
    DeviceCollectiveOptions options;
    // Such a group waits for who still computes, which a standstill ends; NCCL's is not waited for
    // before all have computed.
    if (devices.front().kind != DeviceKind::kCuda) {
      options.timeout_seconds = environment.stall_seconds;
    }
    auto groups = std::make_unique<DeviceGroups>(
        devices,
        [options](std::span<const DeviceId> members) {
          return make_device_collectives(members, options);
        },
        kJoinSeconds);
    const Status formed = groups->form(0, numbers);
    if (formed.ok()) {
      environment.observer.on_event("gradients are " +
                                    gradient_sums_text("", environment.gradient_bucket_bytes));
      return groups;
    }
    if (formed.code() != StatusCode::kNotFound) return formed;
    reason = formed.message();
  }
  if (devices.size() > 1) {
    environment.observer.on_event("gradients are " + gradient_sums_text(reason, 0));
  }
  return std::unique_ptr<DeviceGroups>();
}

/// Loads the target, looks for a checkpoint and makes what computes.
Status fill_run_parts(RunParts& parts, const RunEnvironment& environment) {
  const RunSetup& setup = *parts.setup;
  PERCHERON_RETURN_IF_ERROR(load_targets(parts));
  const std::string& target_hash = parts.models.begin()->second->weights_hash();
  Fingerprint fingerprint = run_fingerprint(setup, target_hash);
  // Samples are numbered by their place in the data, so cached features belong to that data too.
  fingerprint.set("data.train", setup.data.train->content_hash());
  parts.fingerprint = fingerprint.digest();
  parts.checkpoint = {parts.setup, resume_fingerprint(setup, target_hash), parts.batches};
  PERCHERON_RETURN_IF_ERROR(open_offline(parts, target_hash, environment.observer));
  PERCHERON_RETURN_IF_ERROR(compare_weights(parts, environment.observer));
  PERCHERON_ASSIGN_OR_RETURN(
      parts.store, FeatureStore::make({setup.config.features().bytes_max(), setup.step_bytes_max}));
  parts.exchange = std::make_unique<LocalFeatures>(*parts.store, parts.held_out);
  PERCHERON_ASSIGN_OR_RETURN(const std::optional<ResumePoint> point,
                             find_resume_point(parts, environment));
  if (point) {
    parts.resumed_from = point->path;
    parts.progress = point->progress;
  }
  parts.quarantine = std::make_unique<Quarantine>(static_cast<int64_t>(
      setup.data.selection.samples.size() + setup.data.held_out_selection.samples.size()));
  PERCHERON_RETURN_IF_ERROR(open_cache(parts, fingerprint));
  for (const std::vector<DeviceId>& group : setup.placement.target_groups()) {
    parts.targets.push_back(make_target(parts, group.front()));
  }
  const size_t trainers = setup.placement.trainers.size();
  if (trainers > 1) parts.collectives = make_local_collective_factory(kJoinSeconds);
  std::vector<int> numbers(trainers);
  std::iota(numbers.begin(), numbers.end(), 0);
  PERCHERON_ASSIGN_OR_RETURN(parts.device_groups, connect_trainers(setup, numbers, environment));
  return make_trainers(parts, point, numbers);
}

/// A run that could not start leaves no trace: an output that holds nothing but its lock goes.
void remove_unused_output(FileSystem& files, const std::string& output) {
  const Result<std::vector<std::string>> names = files.list(output);
  if (!names.ok() || names->size() > 1 || (names->size() == 1 && names->front() != ".lock")) return;
  const Status removed = files.remove_all(output);
  if (!removed.ok()) log_warning("{} stays: {}", output, removed.message());
}

}  // namespace

Result<std::unique_ptr<RunParts>> make_run_parts(std::shared_ptr<const RunSetup> setup,
                                                 const RunEnvironment& environment) {
  auto parts = std::make_unique<RunParts>(setup);
  parts->gradient_bucket_bytes = environment.gradient_bucket_bytes;
  parts->files = &environment.files;
  parts->clock = &environment.clock;
  parts->activity = environment.activity ? environment.activity
                                         : std::make_shared<RunActivity>(environment.clock);
  parts->batches = std::make_shared<BatchSource>(setup, environment.clock);
  PERCHERON_RETURN_IF_ERROR(open_devices(*parts));
  const bool new_output = !environment.files.exists(setup->output());
  PERCHERON_RETURN_IF_ERROR(lock_output(*parts));
  tell_about_setup(*setup, *parts, environment.observer);
  if (setup->config.has_cluster()) {
    environment.observer.on_event("cluster is not used: all trainers are in this process");
  }
  const Status filled = fill_run_parts(*parts, environment);
  if (filled.ok()) return parts;
  if (new_output) remove_unused_output(environment.files, setup->output());
  return filled;
}

Result<RunSummary> train(const proto::Run& run, const RunEnvironment& environment) {
  PERCHERON_ASSIGN_OR_RETURN(std::shared_ptr<const RunSetup> setup,
                             resolve_run(run, environment.files));
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<RunParts> parts,
                             make_run_parts(std::move(setup), environment));
  return run_actors(*parts, environment);
}

}  // namespace percheron
