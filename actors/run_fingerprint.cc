#include "actors/run_fingerprint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

namespace percheron {
namespace {

std::string text(bool value) { return value ? "true" : "false"; }
std::string text(int64_t value) { return std::to_string(value); }
std::string text(double value) { return fmt::format("{}", value); }  // reads back to the same bits
std::string text(DType value) { return std::string(dtype_name(value)); }
std::string text(const std::vector<int64_t>& values) {
  return values.empty() ? "none" : fmt::format("{}", fmt::join(values, ","));
}
std::string text(const std::optional<double>& value) { return value ? text(*value) : "none"; }

const char* name_of(TeacherLoss loss) {
  switch (loss) {
    case TeacherLoss::kSoftCrossEntropy: return "soft_ce";
    case TeacherLoss::kKlDivergence: return "kl";
    case TeacherLoss::kReverseKl: return "reverse_kl";
    case TeacherLoss::kJensenShannon: return "jensen_shannon";
    case TeacherLoss::kTeacherArgmax: return "teacher_argmax";
    case TeacherLoss::kTotalVariation: return "total_variation";
    case TeacherLoss::kNegativeLogAccept: return "negative_log_accept";
    case TeacherLoss::kHybrid: return "hybrid";
  }
  return "";
}

const char* name_of(Denominator denominator) {
  switch (denominator) {
    case Denominator::kSupervised: return "supervised";
    case Denominator::kValid: return "valid";
    case Denominator::kAll: return "all";
    case Denominator::kWeights: return "weights";
    case Denominator::kDocuments: return "documents";
  }
  return "";
}

const char* name_of(PositionWeight weight) {
  switch (weight) {
    case PositionWeight::kNone: return "none";
    case PositionWeight::kExponential: return "exponential";
    case PositionWeight::kDpace: return "dpace";
  }
  return "";
}

const char* name_of(ScheduleShape shape) {
  switch (shape) {
    case ScheduleShape::kCosine: return "cosine";
    case ScheduleShape::kLinear: return "linear";
    case ScheduleShape::kConstant: return "constant";
    case ScheduleShape::kWsd: return "wsd";
  }
  return "";
}

std::string rope_text(const RopeConfig& rope) {
  return fmt::format(
      "type {} theta {} factor {} low {} high {} beta_fast {} beta_slow {} attention_factor {} "
      "mscale {} mscale_all_dim {} truncate {} original_positions {}",
      rope_type_name(rope.type), rope.theta, rope.factor, rope.low_freq_factor,
      rope.high_freq_factor, rope.beta_fast, rope.beta_slow, text(rope.attention_factor),
      text(rope.mscale), text(rope.mscale_all_dim), text(rope.truncate),
      rope.original_max_position_embeddings);
}

// Everything of a transformer's configuration on which its states depend, but rope, which has a
// field of its own.
std::string config_text(const ModelConfig& config) {
  return fmt::format(
      "type {} hidden {} intermediate {} layers {} heads {} kv_heads {} head_dim "
      "{} vocabulary {} positions {} eps {} tied {} qkv_bias {} o_bias {} mlp_bias {} qk_norm {} "
      "sliding_window {}",
      config.model_type, config.hidden_size, config.intermediate_size, config.num_hidden_layers,
      config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.vocab_size,
      config.max_position_embeddings, config.rms_norm_eps, text(config.tie_word_embeddings),
      text(config.qkv_bias), text(config.o_bias), text(config.mlp_bias), text(config.qk_norm),
      text(config.sliding_window));
}

void add_drafter(const RunSetup& setup, Fingerprint& fingerprint) {
  const DrafterConfig& drafter = setup.drafter;
  const bool eagle3 = drafter.kind == DrafterKind::kEagle3;
  fingerprint.set("drafter.kind", eagle3 ? "eagle3" : "dflash");
  fingerprint.set("drafter.compute_dtype", text(setup.drafter_dtype));
  fingerprint.set("drafter.layers", text(drafter.body.num_hidden_layers));
  fingerprint.set("drafter.sliding_window", text(drafter.body.sliding_window));
  fingerprint.set("drafter.config", config_text(drafter.body));
  fingerprint.set("drafter.rope", rope_text(drafter.body.rope));
  fingerprint.set("drafter.draft_vocab_size", text(drafter.draft_vocab_size));
  fingerprint.set("drafter.freeze_head", text(drafter.freeze_head));
  if (eagle3) {
    fingerprint.set("drafter.norm_before_residual", text(drafter.norm_before_residual));
    fingerprint.set("drafter.norm_before_fc", text(drafter.norm_before_fc));
    fingerprint.set("drafter.norm_output", text(drafter.norm_output));
    fingerprint.set("drafter.fc_norm", text(drafter.fc_norm));
  } else {
    fingerprint.set("drafter.block_size", text(drafter.block_size));
    fingerprint.set("drafter.causal_in_sliding_layers", text(drafter.causal_in_sliding_layers));
    fingerprint.set("drafter.window_rule",
                    drafter.window_rule == WindowRule::kPerSlot ? "per_slot" : "per_anchor");
  }
}

// Nothing for the packed order: checkpoints older than the others go on.
void add_order(const PlanOptions& data, Fingerprint& fingerprint) {
  if (data.order == EpochOrder::kPacked) return;
  fingerprint.set("data.order", std::string(epoch_order_name(data.order)));
  fingerprint.set("data.batch_samples_max", text(data.batch_samples_max));
  if (data.order == EpochOrder::kBucketed) fingerprint.set("data.buckets", text(data.buckets));
}

// Nothing for our own kernels: checkpoints and features from before there were others go on.
void add_attention(AttentionKernel attention, Fingerprint& fingerprint) {
  if (attention == AttentionKernel::kOwn) return;
  const bool cudnn = attention == AttentionKernel::kCudnn;
  fingerprint.set("target.attention", cudnn ? "cudnn" : "auto");
}

// Nothing for full weights, likewise.
void add_weights(WeightFormat weights, Fingerprint& fingerprint) {
  if (weights == WeightFormat::kFull) return;
  fingerprint.set("target.weights", std::string(weight_format_name(weights)));
}

// One line, as a fingerprint needs.
std::string directories_text(const proto::Features& given) {
  if (given.from().empty()) return "none";
  std::string text = fmt::format("{}", fmt::join(given.from().begin(), given.from().end(), ", "));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// Another engine's states are not the target's to the bit. Percheron's own are.
void add_peer_features(const proto::Features& given, Fingerprint& fingerprint) {
  if (given.from().empty() || given.from_capture().empty()) return;
  static constexpr const char* kLast[] = {"none", "before_norm", "after_norm"};
  fingerprint.set("features.from_capture", text(std::vector<int64_t>(given.from_capture().begin(),
                                                                     given.from_capture().end())));
  fingerprint.set("features.from_last", kLast[static_cast<int>(given.from_last())]);
}

// Only what the drafter's kind reads.
void add_loss(const RunSetup& setup, Fingerprint& fingerprint) {
  const LossConfig& loss = setup.loss;
  fingerprint.set("loss.kind", loss.hard_labels ? "data_labels" : name_of(loss.teacher_loss));
  fingerprint.set("loss.denominator", name_of(loss.denominator));
  if (setup.drafter.kind == DrafterKind::kEagle3) {
    fingerprint.set("loss.ttt_steps", text(loss.ttt_steps));
    fingerprint.set("loss.step_decay", text(loss.step_decay));
    fingerprint.set("loss.mask_shift", text(loss.mask_shift));
    fingerprint.set("loss.gate_on_draft_vocab", text(loss.gate_on_draft_vocab));
    return;
  }
  fingerprint.set("loss.position_weight", name_of(loss.position_weight));
  if (loss.position_weight == PositionWeight::kExponential) {
    fingerprint.set("loss.gamma", text(loss.gamma));
  } else if (loss.position_weight == PositionWeight::kDpace) {
    fingerprint.set("loss.dpace_alpha", text(loss.dpace_alpha));
  }
  fingerprint.set("loss.anchors_max", text(loss.anchors_max));
  fingerprint.set("loss.supervised_per_anchor", text(loss.supervised_per_anchor));
}

}  // namespace

Fingerprint run_fingerprint(const RunSetup& setup, const std::string& target_hash) {
  FingerprintParts parts;
  parts.passport = setup.data.train->passport();
  parts.target_hash = target_hash;
  parts.capture = setup.drafter.capture;
  parts.rope = rope_text(setup.target.rope);
  parts.mask_token = setup.drafter.mask_token_id;
  parts.draft_vocabulary_hash = setup.draft_vocabulary_hash;
  Fingerprint fingerprint = make_fingerprint(parts);
  fingerprint.set("target.config", config_text(setup.target));
  fingerprint.set("target.compute_dtype", text(setup.target_dtype));
  add_attention(setup.placement.attention, fingerprint);
  add_weights(setup.target_weights, fingerprint);
  return fingerprint;
}

Fingerprint feature_fingerprint(const RunSetup& setup, const std::string& target_hash) {
  const Fingerprint whole = run_fingerprint(setup, target_hash);
  Fingerprint fingerprint;
  for (const auto& [field, value] : whole.fields()) {
    if (field != "mask_token" && field != "draft_vocabulary_hash") fingerprint.set(field, value);
  }
  fingerprint.set("data.train", setup.data.train->content_hash());
  fingerprint.set("features.dtype", text(setup.features.dtype));
  return fingerprint;
}

Fingerprint resume_fingerprint(const RunSetup& setup, const std::string& target_hash) {
  Fingerprint fingerprint = run_fingerprint(setup, target_hash);
  const PlanOptions& data = setup.data.options;
  static constexpr const char* kTooLong[] = {"refuse", "truncate", "skip"};
  fingerprint.set("data.train", setup.data.train->content_hash());
  fingerprint.set("data.token_budget", text(data.token_budget));
  fingerprint.set("data.too_long", kTooLong[static_cast<int>(data.too_long)]);
  fingerprint.set("data.seed", std::to_string(data.seed));
  add_order(data, fingerprint);
  fingerprint.set("train.micro_batches_per_step", text(setup.steps.micro_batches_per_step()));
  fingerprint.set("features.dtype", text(setup.features.dtype));
  add_peer_features(setup.config.features(), fingerprint);
  add_drafter(setup, fingerprint);
  add_loss(setup, fingerprint);
  const OptimizerConfig& optimizer = setup.optimizer;
  const bool muon = optimizer.kind == OptimizerKind::kMuon;
  fingerprint.set("optimizer.kind", muon ? "muon" : "adamw");
  fingerprint.set("optimizer.beta1", text(optimizer.beta1));
  fingerprint.set("optimizer.beta2", text(optimizer.beta2));
  fingerprint.set("optimizer.epsilon", text(optimizer.epsilon));
  if (muon) fingerprint.set("optimizer.muon_momentum", text(optimizer.muon_momentum));
  return fingerprint;
}

Fingerprint changeable_settings(const RunSetup& setup) {
  Fingerprint settings;
  const OptimizerConfig& optimizer = setup.optimizer;
  settings.set("optimizer.learning_rate", text(optimizer.learning_rate));
  settings.set("optimizer.weight_decay", text(optimizer.weight_decay));
  settings.set("optimizer.clip_norm", text(optimizer.clip_norm));
  if (optimizer.kind == OptimizerKind::kMuon) {
    settings.set("optimizer.muon_learning_rate", text(optimizer.muon_learning_rate));
    settings.set("optimizer.muon_weight_decay", text(optimizer.muon_weight_decay));
  }
  const Schedule& schedule = setup.schedule;
  settings.set("schedule.kind", name_of(schedule.shape));
  settings.set("schedule.warmup_steps", text(schedule.warmup_steps));
  settings.set("schedule.floor", text(schedule.floor));
  if (schedule.shape == ScheduleShape::kWsd) {
    settings.set("schedule.decay_steps", text(schedule.decay_steps));
  }
  settings.set("features.from", directories_text(setup.config.features()));
  // The learning rate of a step depends on how many there are.
  settings.set("schedule.steps", text(schedule.total_steps));
  return settings;
}

}  // namespace percheron
