#include "actors/run_checkpoint.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "actors/run_fingerprint.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/checkpoint.h"
#include "data/training_state.h"
#include "data/vocabulary_map.h"
#include "model/drafter_config.h"
#include "model/drafter_files.h"

namespace percheron {
namespace {

constexpr const char* kMasters = "training_state/masters.safetensors";
constexpr const char* kMoments = "training_state/optimizer.safetensors";
constexpr const char* kRun = "training_state/run.textproto";

std::string to_text(const google::protobuf::Message& message) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  return text;
}

TensorFile moments_file(const std::map<std::string, OptimizerState::Moment>& moments) {
  TensorFile file;
  for (const auto& [name, moment] : moments) {
    file.tensors.push_back(
        {name, ConstTensorView(moment.values.data(), DType::kF32, moment.shape)});
  }
  return file;
}

void fill_plan(const RunSetup& setup, proto::TrainingState& state) {
  const MicroBatchId next = setup.steps.begin(state.step());
  state.set_epoch(next.epoch);
  state.set_next_micro_batch(next.index);
  state.set_micro_batches_per_step(setup.steps.micro_batches_per_step());
  state.set_seed(setup.data.options.seed);
  proto::TrainingState::Schedule& schedule = *state.mutable_schedule();
  std::string kind = proto::Schedule::Kind_Name(setup.config.schedule().kind());
  std::transform(kind.begin(), kind.end(), kind.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  schedule.set_kind(kind);
  schedule.set_warmup_steps(setup.schedule.warmup_steps);
  schedule.set_total_steps(setup.schedule.total_steps);
  schedule.set_floor(setup.schedule.floor);
  schedule.set_decay_steps(setup.schedule.decay_steps);
}

proto::TrainingState state_of(const CheckpointSettings& settings, const TrainerSnapshot& snapshot,
                              const RunProgress& progress) {
  proto::TrainingState state;
  state.set_step(snapshot.step);
  fill_plan(*settings.setup, state);
  proto::TrainingState::Ledger& ledger = *state.mutable_ledger();
  ledger.set_steps_committed(progress.step);
  ledger.set_micro_batches_committed(progress.micro_batches);
  ledger.set_crc32c(progress.ledger_crc32c);
  set_fingerprint(settings.fingerprint, state);
  if (state.epoch() < settings.setup->steps.epochs()) {
    state.set_epoch_plan_hash(settings.batches->plan_hash(state.epoch()));
  }
  proto::TrainingState::Optimizer& optimizer = *state.mutable_optimizer();
  optimizer.set_kind(settings.setup->optimizer.kind == OptimizerKind::kMuon ? "muon" : "adamw");
  optimizer.set_updates(snapshot.optimizer.steps);
  const Fingerprint changeable = changeable_settings(*settings.setup);
  for (const auto& [name, value] : changeable.fields()) {
    proto::TrainingState::Field& field = *optimizer.add_changeable();
    field.set_name(name);
    field.set_value(value);
  }
  if (progress.best_step) {
    state.mutable_best()->set_step(*progress.best_step);
    state.mutable_best()->set_acceptance_length(progress.best_acceptance);
  }
  state.set_tokens_trained(progress.tokens);
  state.set_samples_trained(progress.samples);
  state.set_seconds_trained(progress.seconds);
  proto::TrainingState::Totals& totals = *state.mutable_totals();
  totals.set_supervised_tokens(progress.supervised);
  totals.set_feature_seconds(progress.feature_seconds);
  totals.set_train_seconds(progress.train_seconds);
  totals.set_steps_skipped(progress.steps_skipped);
  totals.set_steals(progress.steals);
  return state;
}

RunProgress progress_of(const proto::TrainingState& state) {
  RunProgress progress;
  progress.step = state.step();
  progress.micro_batches = state.ledger().micro_batches_committed();
  progress.ledger_crc32c = state.ledger().crc32c();
  progress.tokens = state.tokens_trained();
  progress.samples = state.samples_trained();
  progress.seconds = state.seconds_trained();
  progress.supervised = state.totals().supervised_tokens();
  progress.feature_seconds = state.totals().feature_seconds();
  progress.train_seconds = state.totals().train_seconds();
  progress.steps_skipped = state.totals().steps_skipped();
  progress.steals = state.totals().steals();
  if (state.has_best()) {
    progress.best_step = state.best().step();
    progress.best_acceptance = state.best().acceptance_length();
  }
  return progress;
}

Result<OptimizerState> read_moments(FileSystem& files, const std::string& path, int64_t updates) {
  PERCHERON_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(files, path));
  OptimizerState state;
  state.steps = updates;
  for (const auto& [name, view] : file.tensors()) {
    if (view.dtype() != DType::kF32) {
      return data_loss(
          fmt::format("{}: tensor {} is {}, expected F32", path, name, dtype_name(view.dtype())));
    }
    OptimizerState::Moment& moment = state.moments[name];
    moment.shape.assign(view.shape().begin(), view.shape().end());
    const float* values = view.as<float>();
    moment.values.assign(values, values + view.elements());
  }
  return state;
}

Status other_run(const std::string& difference) {
  return failed_precondition(difference +
                             "; restore the setting to go on, or give another output.directory");
}

// The steps that the checkpoint has behind it are this run's, and it goes on where they end.
Status check_cursor(const std::string& path, const proto::TrainingState& state,
                    const StepPlan& steps) {
  const MicroBatchId next = steps.begin(state.step());
  if (MicroBatchId{state.epoch(), state.next_micro_batch()} != next ||
      state.micro_batches_per_step() != steps.micro_batches_per_step()) {
    return other_run(fmt::format(
        "{} goes on at micro-batch {} of epoch {} with {} a step, but step {} of this run begins "
        "at micro-batch {} of epoch {} with {} a step",
        path, state.next_micro_batch(), state.epoch(), state.micro_batches_per_step(), state.step(),
        next.index, next.epoch, steps.micro_batches_per_step()));
  }
  uint32_t crc = 0;
  int64_t micro_batches = 0;
  for (int64_t step = 0; step < state.step(); ++step) {
    crc = ledger_crc32c(crc, steps.at(step));
    micro_batches += steps.at(step).count;
  }
  const proto::TrainingState::Ledger& ledger = state.ledger();
  if (ledger.steps_committed() == state.step() && ledger.crc32c() == crc &&
      ledger.micro_batches_committed() == micro_batches) {
    return ok_status();
  }
  return other_run(fmt::format(
      "the ledger of {} counts {} steps and {} micro-batches (crc32c {:08x}), but the first {} "
      "steps of this run are {} micro-batches (crc32c {:08x}): it was not written by this run",
      path, ledger.steps_committed(), ledger.micro_batches_committed(), ledger.crc32c(),
      state.step(), micro_batches, crc));
}

Status check_same_run(const std::string& path, const proto::TrainingState& state,
                      const CheckpointSettings& settings) {
  const StepPlan& steps = settings.setup->steps;
  const Status same = compare_fingerprints(fingerprint_of(state), "the checkpoint " + path,
                                           settings.fingerprint, "this run");
  if (!same.ok()) return other_run(same.message());
  if (state.step() > steps.steps()) {
    return failed_precondition(fmt::format(
        "{} is at step {}, but this run ends at step {}: raise train.epochs or train.steps, or "
        "give another output.directory",
        path, state.step(), steps.steps()));
  }
  PERCHERON_RETURN_IF_ERROR(check_cursor(path, state, steps));
  if (!state.has_epoch_plan_hash() || state.epoch() >= steps.epochs() ||
      state.epoch_plan_hash() == settings.batches->plan_hash(state.epoch())) {
    return ok_status();
  }
  return other_run(fmt::format(
      "{} was written with another order of samples in epoch {} than this program makes", path,
      state.epoch()));
}

std::vector<std::string> changed_settings(const proto::TrainingState& state,
                                          const RunSetup& setup) {
  const Fingerprint current = changeable_settings(setup);
  std::vector<std::string> changes;
  for (const proto::TrainingState::Field& saved : state.optimizer().changeable()) {
    const std::string* value = current.find(saved.name());
    if (value != nullptr && *value != saved.value()) {
      changes.push_back(
          fmt::format("{} was {} and is now {}", saved.name(), saved.value(), *value));
    }
  }
  return changes;
}

bool equal_bits(const OptimizerState::Moment& moment, const ConstTensorView& view) {
  return view.dtype() == DType::kF32 && view.bytes() == moment.values.size() * sizeof(float) &&
         std::memcmp(view.data(), moment.values.data(), view.bytes()) == 0;
}

}  // namespace

uint32_t ledger_crc32c(uint32_t crc, const PlannedStep& step) {
  const std::array<int64_t, 4> entry = {step.step, step.epoch, step.first, step.count};
  return crc32c(std::as_bytes(std::span(entry)), crc);
}

Result<std::string> write_run_checkpoint(FileSystem& files, const CheckpointSettings& settings,
                                         const TrainerSnapshot& snapshot,
                                         const RunProgress& progress,
                                         const std::function<Status()>& may_publish) {
  const RunSetup& setup = *settings.setup;
  ConfigExport options;
  options.target_path = setup.config.target().path();
  options.target_architecture = setup.target.architecture;
  PERCHERON_ASSIGN_OR_RETURN(
      EncodedDrafter drafter,
      encode_drafter(setup.drafter, snapshot.drafter, setup.draft_ids, ConstTensorView(), options));
  if (!setup.draft_vocabulary_data.empty()) {
    drafter.metadata[kDraftVocabularyDataHash] = setup.draft_vocabulary_data;
  }
  std::vector<CheckpointFile> contents;
  contents.push_back({"config.json", drafter.config_text});
  contents.push_back({"model.safetensors", TensorFile{drafter.views(), drafter.metadata}});
  contents.push_back({kMasters, moments_file(snapshot.masters)});
  contents.push_back({kMoments, moments_file(snapshot.optimizer.moments)});
  contents.push_back(
      {kTrainingStateFile, training_state_text(state_of(settings, snapshot, progress))});
  contents.push_back({kRun, to_text(setup.config)});
  PERCHERON_ASSIGN_OR_RETURN(const std::string path,
                             write_checkpoint(files, setup.output(), snapshot.step, contents,
                                              settings.fingerprint, may_publish));
  const Result<std::vector<std::string>> removed =
      remove_old_checkpoints(files, setup.output(), setup.config.checkpoint().keep());
  if (!removed.ok()) log_warning("old checkpoints stay: {}", removed.status().message());
  return path;
}

Result<ResumePoint> read_run_checkpoint(FileSystem& files, const std::string& path,
                                        const CheckpointSettings& settings) {
  const std::string state_path = join_path(path, kTrainingStateFile);
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(state_path));
  PERCHERON_ASSIGN_OR_RETURN(const proto::TrainingState state,
                             parse_training_state(text, state_path));
  PERCHERON_RETURN_IF_ERROR(check_same_run(path, state, settings));
  ResumePoint point;
  point.path = path;
  point.progress = progress_of(state);
  point.changes = changed_settings(state, *settings.setup);
  PERCHERON_ASSIGN_OR_RETURN(point.masters_file,
                             SafetensorsFile::open(files, join_path(path, kMasters)));
  point.masters = point.masters_file.tensors();
  PERCHERON_ASSIGN_OR_RETURN(
      point.optimizer, read_moments(files, join_path(path, kMoments), state.optimizer().updates()));
  return point;
}

Status prove_run_checkpoint(FileSystem& files, const std::string& path,
                            const CheckpointSettings& settings, const TrainerSnapshot& snapshot) {
  PERCHERON_RETURN_IF_ERROR(verify_checkpoint(files, path).status());
  PERCHERON_ASSIGN_OR_RETURN(const ResumePoint point, read_run_checkpoint(files, path, settings));
  bool equal = point.masters.size() == snapshot.masters.size() &&
               point.optimizer.moments.size() == snapshot.optimizer.moments.size();
  for (const auto& [name, master] : snapshot.masters) {
    const auto read = point.masters.find(name);
    equal = equal && read != point.masters.end() && equal_bits(master, read->second);
  }
  for (const auto& [name, moment] : snapshot.optimizer.moments) {
    const auto read = point.optimizer.moments.find(name);
    equal = equal && read != point.optimizer.moments.end() && read->second.values == moment.values;
  }
  if (equal) return ok_status();
  return data_loss(fmt::format("{} was written, but reads back differently", path));
}

}  // namespace percheron
