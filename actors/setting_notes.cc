#include "actors/setting_notes.h"

#include <fmt/format.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace percheron {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

bool is_given(const Message& section, const std::string& name) {
  const FieldDescriptor* field = section.GetDescriptor()->FindFieldByName(name);
  const google::protobuf::Reflection& reflection = *section.GetReflection();
  return field->is_repeated() ? reflection.FieldSize(section, field) > 0
                              : reflection.HasField(section, field);
}

class Notes {
 public:
  /// Of these keys of a section, those that were given, when the run does not read them.
  void unless(bool read, std::string_view section_name, const Message& section,
              std::initializer_list<const char*> keys, std::string_view reason) {
    if (read) return;
    for (const char* key : keys) {
      if (!is_given(section, key)) continue;
      lines_.push_back(fmt::format("{}.{} is not used: {}", section_name, key, reason));
    }
  }
  void add(std::string line) { lines_.push_back(std::move(line)); }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

void check_loss(const RunSetup& setup, Notes& notes) {
  const proto::Loss& loss = setup.config.loss();
  const bool eagle3 = setup.drafter.kind == DrafterKind::kEagle3;
  const PositionWeight weight = setup.loss.position_weight;
  notes.unless(eagle3, "loss", loss, {"ttt_steps", "step_decay", "mask_shift"},
               "DFlash has no steps of training-time test");
  notes.unless(!setup.draft_ids.empty(), "loss", loss, {"gate_on_draft_vocab"},
               "the draft vocabulary is the whole one");
  if (eagle3) {
    notes.unless(
        false, "loss", loss,
        {"position_weight", "gamma", "dpace_alpha", "anchors_max", "supervised_per_anchor"},
        "EAGLE-3 has no blocks");
    return;
  }
  notes.unless(weight == PositionWeight::kExponential, "loss", loss, {"gamma"},
               "loss.position_weight is not exponential");
  notes.unless(weight == PositionWeight::kDpace, "loss", loss, {"dpace_alpha"},
               "loss.position_weight is not dpace");
}

// Planning devices aside, only these have two kernels.
void check_attention(const RunSetup& setup, Notes& notes) {
  const std::vector<DeviceId>& targets = setup.placement.targets;
  const bool read = std::any_of(targets.begin(), targets.end(), [](DeviceId id) {
    return id.kind == DeviceKind::kCuda || id.kind == DeviceKind::kEmulated;
  });
  notes.unless(read, "target", setup.config.target(), {"attention"},
               "no target is placed on a CUDA device");
}

void check_assignment(const RunSetup& setup, Notes& notes) {
  const bool compares = setup.assignment == Assignment::kRoundRobin ||
                        setup.assignment == Assignment::kPerTrainerQueue;
  if (!compares || setup.placement.trainers.size() < 2) return;
  notes.add(
      "mailbox.assignment ties micro-batches to trainers, so that a slow or overfed one holds up "
      "all others: it is there for comparison; stealing, the default, does not");
}

void check_end(const RunSetup& setup, Notes& notes) {
  const int64_t last = setup.steps.steps();
  if (setup.config.train().has_epochs() && setup.config.train().has_steps()) {
    notes.add(fmt::format(
        "train.epochs {} and train.steps {} are both given: the run ends with the first, at step "
        "{} in epoch {}",
        setup.config.train().epochs(), setup.config.train().steps(), last, setup.steps.epochs()));
  }
  for (const int64_t step : setup.config.evaluate().at_steps()) {
    if (step <= last) continue;
    notes.add(
        fmt::format("evaluate.at_steps {} is not reached: the run ends at step {}", step, last));
  }
}

}  // namespace

std::vector<std::string> setting_notes(const RunSetup& setup) {
  const proto::Run& run = setup.config;
  const bool eagle3 = setup.drafter.kind == DrafterKind::kEagle3;
  Notes notes;
  notes.unless(eagle3, "drafter", run.drafter(),
               {"norm_before_residual", "norm_before_fc", "norm_output", "freeze_head"},
               "it belongs to EAGLE-3");
  notes.unless(!eagle3, "drafter", run.drafter(),
               {"block_size", "mask_token_id", "sliding_window", "sliding_layers"},
               "it belongs to DFlash");
  check_attention(setup, notes);
  notes.unless(setup.target_weights != WeightFormat::kFull, "target", run.target(),
               {"compare_tokens"}, "target.weights is full");
  check_loss(setup, notes);
  notes.unless(setup.optimizer.kind == OptimizerKind::kMuon, "optimizer", run.optimizer(),
               {"muon_learning_rate", "muon_momentum", "muon_weight_decay"},
               "optimizer.kind is adamw");
  notes.unless(!run.schedule().has_warmup_steps(), "schedule", run.schedule(), {"warmup_ratio"},
               "schedule.warmup_steps is given");
  notes.unless(setup.schedule.shape == ScheduleShape::kWsd, "schedule", run.schedule(),
               {"decay_ratio"}, "schedule.kind is not wsd");
  notes.unless(setup.steps.epochs() > 1, "features", run.features(),
               {"cache_memory_bytes_max", "cache_disk_bytes_max", "cache_directory"},
               "the run has one epoch, no features are read again");
  notes.unless(!run.features().from().empty(), "features", run.features(),
               {"from_capture", "from_last"}, "features.from is not given");
  notes.unless(
      setup.data.held_out != nullptr, "evaluate", run.evaluate(),
      {"every_steps", "at_steps", "conversations_max", "draft_lengths", "feature_bytes_max"},
      "data.held_out is not given");
  check_assignment(setup, notes);
  check_end(setup, notes);
  return notes.take();
}

}  // namespace percheron
