#include "actors/run_checkpoint.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/log.h"
#include "data/checkpoint.h"
#include "data/training_state.h"
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
  const int64_t step = state.step();
  const bool more = step < setup.steps.steps();
  const PlannedStep next = more ? setup.steps.at(step) : PlannedStep{};
  state.set_epoch(more ? next.epoch : setup.steps.epochs());
  state.set_next_micro_batch(more ? next.first : 0);
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
  if (snapshot.step < settings.setup->steps.steps()) {
    state.set_epoch_plan_hash(settings.batches->plan_hash(state.epoch()));
  }
  proto::TrainingState::Optimizer& optimizer = *state.mutable_optimizer();
  optimizer.set_kind(settings.setup->optimizer.kind == OptimizerKind::kMuon ? "muon" : "adamw");
  optimizer.set_updates(snapshot.optimizer.steps);
  if (progress.best_step) {
    state.mutable_best()->set_step(*progress.best_step);
    state.mutable_best()->set_acceptance_length(progress.best_acceptance);
  }
  state.set_tokens_trained(progress.tokens);
  state.set_samples_trained(progress.samples);
  state.set_seconds_trained(progress.seconds);
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

Status check_same_run(const std::string& path, const proto::TrainingState& state,
                      const CheckpointSettings& settings) {
  const StepPlan& steps = settings.setup->steps;
  PERCHERON_RETURN_IF_ERROR(compare_fingerprints(fingerprint_of(state), "the checkpoint " + path,
                                                 settings.fingerprint, "this run"));
  if (state.step() > steps.steps()) {
    return failed_precondition(fmt::format(
        "{} is at step {}, but this run ends at step {}: raise train.epochs or train.steps, or "
        "give another output.directory",
        path, state.step(), steps.steps()));
  }
  if (state.step() == steps.steps()) return ok_status();
  const PlannedStep next = steps.at(state.step());
  const bool same_order = !state.has_epoch_plan_hash() || state.epoch() != next.epoch ||
                          state.epoch_plan_hash() == settings.batches->plan_hash(next.epoch);
  if (same_order) return ok_status();
  return failed_precondition(fmt::format(
      "{} was written with another order of samples in epoch {} than this program makes", path,
      next.epoch));
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
                                         const RunProgress& progress) {
  const RunSetup& setup = *settings.setup;
  ConfigExport options;
  options.target_path = setup.config.target().path();
  options.target_architecture = setup.target.architecture;
  PERCHERON_ASSIGN_OR_RETURN(
      const EncodedDrafter drafter,
      encode_drafter(setup.drafter, snapshot.drafter, setup.draft_ids, ConstTensorView(), options));
  std::vector<CheckpointFile> contents;
  contents.push_back({"config.json", drafter.config_text});
  contents.push_back({"model.safetensors", TensorFile{drafter.views(), drafter.metadata}});
  contents.push_back({kMasters, moments_file(snapshot.masters)});
  contents.push_back({kMoments, moments_file(snapshot.optimizer.moments)});
  contents.push_back(
      {kTrainingStateFile, training_state_text(state_of(settings, snapshot, progress))});
  contents.push_back({kRun, to_text(setup.config)});
  PERCHERON_ASSIGN_OR_RETURN(
      const std::string path,
      write_checkpoint(files, setup.output(), snapshot.step, contents, settings.fingerprint));
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
  point.schedule_steps = state.schedule().total_steps();
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
