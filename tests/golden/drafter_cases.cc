#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/dflash.h"
#include "model/eagle3.h"
#include "tests/golden/drafter_step.h"
#include "tests/golden/tensors.h"

namespace percheron::golden {
namespace {

constexpr double kStepLossTolerance = 2e-6;

std::vector<int64_t> captured_layers(int64_t count) {
  std::vector<int64_t> layers;
  for (int64_t j = 1; j <= count; ++j) layers.push_back(j);
  return layers;
}

Result<int64_t> captured_states(const DrafterStep& step, const std::string& name) {
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView states, step.file.tensor(name));
  return states.dim(-1) / step.config.target_hidden_size;
}

// Target ids of the draft vocabulary: from d2t, or the first ids where the file only has the pruned
// head.
Result<std::vector<int32_t>> draft_ids_of(const DrafterStep& step) {
  std::vector<int32_t> ids;
  if (step.config.draft_vocab_size == step.config.body.vocab_size) return ids;
  std::vector<int64_t> offsets(static_cast<size_t>(step.config.draft_vocab_size), 0);
  if (step.file.contains("d2t")) {
    PERCHERON_ASSIGN_OR_RETURN(offsets, read_integers(step.file, "d2t"));
  }
  for (size_t row = 0; row < offsets.size(); ++row) {
    ids.push_back(static_cast<int32_t>(static_cast<int64_t>(row) + offsets[row]));
  }
  return ids;
}

// The teacher's logits in the draft vocabulary on the device; fills features.top1 from the whole
// one.
Result<Tensor> given_teacher(GoldenDevice& device, const DrafterStep& step,
                             const std::vector<int32_t>& draft_ids, Features& features) {
  Context context = device.context();
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> logits,
                             read_floats(step.file, "teacher_logits"));
  const int64_t tokens = features.batch.tokens();
  const int64_t vocabulary = step.config.body.vocab_size;
  std::vector<float> kept;
  for (int64_t i = 0; i < tokens; ++i) {
    const float* row = &logits[static_cast<size_t>(i * vocabulary)];
    features.top1.push_back(static_cast<int32_t>(std::max_element(row, row + vocabulary) - row));
    for (int64_t r = 0; r < step.config.draft_vocab_size; ++r) {
      kept.push_back(row[draft_ids.empty() ? r : draft_ids[static_cast<size_t>(r)]]);
    }
  }
  PERCHERON_ASSIGN_OR_RETURN(
      Tensor teacher,
      context.device.make_tensor(DType::kF32, {tokens, step.config.draft_vocab_size}));
  context.device.copy_bytes(context.stream, teacher.view().data(), kept.data(),
                            teacher.view().bytes());
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  return teacher;
}

Status read_eagle3(DrafterStep& step, const std::string& states) {
  DrafterConfig& config = step.config;
  LossConfig& loss = step.loss;
  config.kind = DrafterKind::kEagle3;
  PERCHERON_ASSIGN_OR_RETURN(const int64_t count, captured_states(step, states));
  config.capture = captured_layers(count);
  config.norm_before_residual = step.flag("norm_before_residual");
  config.norm_before_fc = step.flag("norm_before_fc");
  config.norm_output = step.flag("norm_output");
  config.fc_norm = step.flag("fc_norm");
  config.freeze_head = !step.file.contains("grad.lm_head.weight");
  loss.ttt_steps = step.integer("ttt_steps", 0);
  PERCHERON_ASSIGN_OR_RETURN(loss.step_decay, metadata_number(step.file, "ttt_decay"));
  const std::string rule = step.text("mask_rule");
  loss.gate_on_draft_vocab = rule.find("draft_vocab") != std::string::npos;
  if (rule.starts_with("i+k")) {
    loss.mask_shift = 0;
  } else if (rule.starts_with("i+1+k")) {
    loss.mask_shift = 1;
  } else if (rule.starts_with("i+2+k")) {
    loss.mask_shift = 2;
  } else {
    return invalid_argument(fmt::format("metadata mask_rule '{}' is not known", rule));
  }
  loss.right_edge =
      step.text("teacher_right_pad") == "zero_rows" ? RightEdge::kZeroTeacher : RightEdge::kDrop;
  return ok_status();
}

// The loss of each step, in a file that has them.
Status compare_step_losses(const DrafterStep& step, const StepSums& sums, Report& report) {
  if (!step.file.contains("plosses")) return ok_status();
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> losses, read_floats(step.file, "plosses"));
  for (size_t k = 0; k < losses.size(); ++k) {
    const double divisor = step.loss.denominator == Denominator::kValid
                               ? sums.position_weight[k] + step.loss.denominator_epsilon
                               : sums.weight;
    report.differences.push_back({fmt::format("plosses.{}", k),
                                  std::abs(sums.position_loss[k] / divisor - losses[k]),
                                  kStepLossTolerance});
  }
  return ok_status();
}

Status read_dflash(DrafterStep& step, const std::string& states, bool speculators) {
  DrafterConfig& config = step.config;
  LossConfig& loss = step.loss;
  config.kind = DrafterKind::kDflash;
  PERCHERON_ASSIGN_OR_RETURN(const int64_t count, captured_states(step, states));
  config.capture = captured_layers(count);
  config.block_size = step.integer("block_size", 0);
  config.mask_token_id = step.integer("mask_token_id", -1);
  const int64_t window = step.integer("sliding_window", 0);
  std::string types = step.text("layer_types");
  for (size_t at = 0; at < types.size(); at = types.find(',', at) + 1) {
    config.body.sliding_window.push_back(types.compare(at, 7, "sliding") == 0 ? window : 0);
    if (types.find(',', at) == std::string::npos) break;
  }
  config.window_rule = speculators ? WindowRule::kPerAnchor : WindowRule::kPerSlot;
  config.causal_in_sliding_layers = speculators
                                        ? !step.flag("sliding_window_non_causal")
                                        : step.integer("block_causal_in_sliding_layers", 1) != 0;
  loss.hard_labels = !speculators;
  loss.cross_documents = speculators;
  loss.gate_on_draft_vocab = false;
  const std::string gamma = step.text("loss_decay_gamma", "None");
  const std::string weight = step.text("position_weight", "fixed-exp-decay");
  if (weight == "dpace") loss.position_weight = PositionWeight::kDpace;
  if (loss.position_weight != PositionWeight::kDpace) {
    loss.position_weight =
        gamma == "None" || weight == "none" ? PositionWeight::kNone : PositionWeight::kExponential;
  }
  if (gamma != "None") loss.gamma = std::strtod(gamma.c_str(), nullptr);
  if (!step.text("dpace_alpha").empty()) {
    PERCHERON_ASSIGN_OR_RETURN(loss.dpace_alpha, metadata_number(step.file, "dpace_alpha"));
  }
  return ok_status();
}

// Anchors that the case keeps, as rows of the pack.
Result<std::vector<DflashAnchor>> golden_anchors(const DrafterStep& step, const Features& features,
                                                 const std::string& valid) {
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView shape, step.file.tensor("input_ids"));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int64_t> anchors,
                             read_integers(step.file, "anchors"));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int64_t> keep, read_integers(step.file, valid));
  const int64_t per_row = static_cast<int64_t>(anchors.size()) / shape.dim(0);
  const std::vector<int32_t>& offsets = features.batch.offsets;
  std::vector<DflashAnchor> kept;
  for (size_t n = 0; n < anchors.size(); ++n) {
    if (keep[n] == 0) continue;
    const int64_t row = static_cast<int64_t>(n) / per_row * shape.dim(1) + anchors[n];
    const auto document = std::upper_bound(offsets.begin(), offsets.end(), row) - 1;
    kept.push_back({static_cast<int32_t>(row), static_cast<int32_t>(document - offsets.begin())});
  }
  return kept;
}

}  // namespace

Result<Report> run_eagle3_step(const std::string& path, DeviceId device_id) {
  PERCHERON_ASSIGN_OR_RETURN(DrafterStep step, open_drafter_step(path));
  const bool speculators = step.text("convention") == "speculators";
  const std::string prefix = speculators ? "batch." : "";
  const std::string states = speculators ? "batch.hidden_states" : "aux_hidden_states";
  PERCHERON_RETURN_IF_ERROR(read_eagle3(step, states));
  PERCHERON_ASSIGN_OR_RETURN(
      Features features, golden_features(step, prefix, states,
                                         speculators ? "batch.verifier_last_hidden_states" : ""));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int32_t> draft_ids, draft_ids_of(step));
  PERCHERON_ASSIGN_OR_RETURN(GoldenDevice device, GoldenDevice::open(device_id));
  Context context = device.context();
  if (speculators) {  // its batches are shifted already, and the shift ran over the whole row
    step.loss.row_shift = 0;
    step.loss.mask_shift -= 1;
    step.loss.cross_documents = true;
  }
  PERCHERON_ASSIGN_OR_RETURN(
      const GoldenTarget target,
      golden_target(device, step, "param.embed_tokens.weight",
                    speculators ? "param.verifier_lm_head.weight" : "param.embed_tokens.weight",
                    speculators ? "param.verifier_norm.weight" : ""));
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<Eagle3Drafter> drafter,
      Eagle3Drafter::make(context, step.config, target.parts, draft_ids, DType::kF32, 0));
  PERCHERON_RETURN_IF_ERROR(set_parameters(device, step, *drafter));
  Tensor teacher;
  if (!speculators) {
    PERCHERON_ASSIGN_OR_RETURN(teacher, given_teacher(device, step, draft_ids, features));
  }
  PERCHERON_ASSIGN_OR_RETURN(const StepSums sums, drafter->forward_backward_with_teacher(
                                                      context, features, step.loss, teacher));
  Report report;
  PERCHERON_RETURN_IF_ERROR(compare_step_losses(step, sums, report));
  PERCHERON_RETURN_IF_ERROR(compare_step(device, step, *drafter, sums,
                                         step.file.contains("total") ? "total" : "loss", report));
  return report;
}

Result<Report> run_dflash_step(const std::string& path, DeviceId device_id) {
  PERCHERON_ASSIGN_OR_RETURN(DrafterStep step, open_drafter_step(path));
  const bool speculators = step.text("convention") == "speculators";
  const std::string states = speculators ? "hidden_states" : "hidden";
  PERCHERON_RETURN_IF_ERROR(read_dflash(step, states, speculators));
  PERCHERON_ASSIGN_OR_RETURN(
      const Features features,
      golden_features(step, "", states, speculators ? "verifier_last_hidden_states" : ""));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int32_t> draft_ids, draft_ids_of(step));
  PERCHERON_ASSIGN_OR_RETURN(GoldenDevice device, GoldenDevice::open(device_id));
  Context context = device.context();
  PERCHERON_ASSIGN_OR_RETURN(
      const GoldenTarget target,
      golden_target(device, step, speculators ? "param.embed_tokens.weight" : "embed",
                    speculators ? "param.verifier_lm_head.weight" : "lm_head",
                    speculators ? "param.verifier_norm.weight" : ""));
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<DflashDrafter> drafter,
      DflashDrafter::make(context, step.config, target.parts, draft_ids, DType::kF32, 0));
  PERCHERON_RETURN_IF_ERROR(set_parameters(device, step, *drafter));
  PERCHERON_ASSIGN_OR_RETURN(std::vector<DflashAnchor> anchors,
                             golden_anchors(step, features, speculators ? "anchor_valid" : "keep"));
  PERCHERON_ASSIGN_OR_RETURN(
      const StepSums sums,
      drafter->forward_backward_at(context, features, step.loss, std::move(anchors)));
  Report report;
  PERCHERON_RETURN_IF_ERROR(compare_step(device, step, *drafter, sums, "loss", report));
  return report;
}

}  // namespace percheron::golden
