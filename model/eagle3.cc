#include "model/eagle3.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/drafter_inputs.h"

namespace percheron {
namespace {

Status check_config(const DrafterConfig& config, const TargetParts& target,
                    std::span<const int32_t> draft_ids) {
  const ModelConfig& body = config.body;
  if (body.num_hidden_layers != 1) {
    return invalid_argument(fmt::format("drafter: EAGLE-3 has one layer, num_hidden_layers is {}",
                                        body.num_hidden_layers));
  }
  if (body.qkv_bias || body.o_bias || body.mlp_bias) {
    return invalid_argument(
        "drafter: attention_bias and mlp_bias must be "
        "false, serving engines read no biases");
  }
  if (config.capture.empty()) return invalid_argument("drafter.capture names no layer");
  if (config.norm_before_fc && config.fc_norm) {
    return invalid_argument("drafter: norm_before_fc and fc_norm exclude each other");
  }
  if (target.embedding.dim(1) != body.hidden_size) {
    return invalid_argument(
        fmt::format("drafter: hidden_size {} differs from the target's {}, "
                    "whose embedding it uses",
                    body.hidden_size, target.embedding.dim(1)));
  }
  if (target.head.dim(1) != config.target_hidden_size ||
      (config.freeze_head && target.head.dim(1) != body.hidden_size)) {
    return invalid_argument(fmt::format(
        "drafter: target_hidden_size {} (hidden_size {}) does not fit the target's head of {}",
        config.target_hidden_size, body.hidden_size, target.head.dim(1)));
  }
  return check_draft_ids(draft_ids, config.draft_vocab_size, target.head.dim(0));
}

}  // namespace

Eagle3Drafter::Eagle3Drafter(Context& context, const DrafterConfig& config,
                             const TargetParts& target, std::vector<int32_t> draft_ids, DType dtype)
    : config_(config),
      target_(target),
      draft_ids_(std::move(draft_ids)),
      to_draft_(draft_rows_of(draft_ids_, target.head.dim(0))),
      dtype_(dtype),
      epsilon_(static_cast<float>(config.body.rms_norm_eps)),
      list_(context.device),
      rope_(context.device, config.body.rope, config.body.head_dim,
            config.body.max_position_embeddings) {
  const int64_t hidden = config.body.hidden_size, captured = config.target_hidden_size;
  const int64_t states = static_cast<int64_t>(config.capture.size());
  if (config.norm_before_fc) {
    fc_norms_.push_back(list_.add(context, "input_norm.weight", {states * captured}));
  }
  for (int64_t j = 0; config.fc_norm && j < states; ++j) {
    fc_norms_.push_back(list_.add(context, fmt::format("fc_norm.{}.weight", j), {captured}));
  }
  fc_ = list_.add(context, "fc.weight", {hidden, states * captured});
  layer_ = std::make_unique<Eagle3Layer>(context, config, list_);
  norm_ = list_.add(context, "norm.weight", {hidden});
  head_ = list_.add(context, "lm_head.weight", {config.draft_vocab_size, hidden},
                    config.freeze_head ? Training::kFrozen : Training::kTrained);
}

Result<std::unique_ptr<Eagle3Drafter>> Eagle3Drafter::make(Context& context,
                                                           const DrafterConfig& config,
                                                           const TargetParts& target,
                                                           std::vector<int32_t> draft_ids,
                                                           DType compute_dtype, uint64_t seed) {
  PERCHERON_RETURN_IF_ERROR(check_config(config, target, draft_ids));
  const DType dtype = activation_dtype(context.device, compute_dtype);
  std::unique_ptr<Eagle3Drafter> drafter(
      new Eagle3Drafter(context, config, target, std::move(draft_ids), dtype));
  PERCHERON_RETURN_IF_ERROR(drafter->list_.status());
  PERCHERON_RETURN_IF_ERROR(drafter->list_.initialise(context, seed));
  if (config.freeze_head) {
    copy_head_rows(context, target.head, drafter->draft_ids_, drafter->head_->value);
  }
  drafter->layer_->build(context, compute_dtype);
  drafter->fc_proj_ = std::make_unique<Linear>(
      context, std::vector<Parameter*>{drafter->fc_}, compute_dtype,
      drafter->fc_norms_.empty() ? Products::kForward : Products::kForwardAndBackward);
  drafter->head_proj_ = std::make_unique<Linear>(context, std::vector<Parameter*>{drafter->head_},
                                                 compute_dtype, Products::kForwardAndBackward);
  drafter->teacher_head_ = std::make_unique<FrozenHead>(context, target.head, drafter->draft_ids_,
                                                        compute_dtype, Products::kForward);
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  return drafter;
}

void Eagle3Drafter::weights_changed(Context& context) {
  fc_proj_->repack(context);
  layer_->repack(context);
  head_proj_->repack(context);  // A frozen head changes too when a checkpoint is loaded.
}

Status Eagle3Drafter::check(const Features& features, const LossConfig& loss,
                            bool teacher_given) const {
  PERCHERON_RETURN_IF_ERROR(check_features(features, config_, target_.embedding.dim(0)));
  if (loss.ttt_steps < 1) {
    return invalid_argument(
        fmt::format("loss.ttt_steps is {}, it must be at least 1", loss.ttt_steps));
  }
  if (loss.hard_labels) {
    return invalid_argument("loss.hard_labels is for DFlash; EAGLE-3 learns from the target");
  }
  if (!teacher_given && !features.has_last) {
    return invalid_argument(
        "EAGLE-3 learns from the target's last layer, "
        "which these features lack; capture them with "
        "features.last");
  }
  return ok_status();
}

Result<StepSums> Eagle3Drafter::forward_backward(Context& context, const Features& features,
                                                 const LossConfig& loss) {
  return forward_backward_with_teacher(context, features, loss, ConstTensorView());
}

Result<StepSums> Eagle3Drafter::forward_backward_with_teacher(Context& context,
                                                              const Features& features,
                                                              const LossConfig& loss,
                                                              ConstTensorView teacher_logits) {
  begin_pass();
  PERCHERON_RETURN_IF_ERROR(check(features, loss, teacher_logits.present()));
  PERCHERON_ASSIGN_OR_RETURN(Eagle3Rows rows, plan_eagle3_rows(features, loss, to_draft_));
  if (rows.teacher_rows.empty()) return sum_up_eagle3(rows, Eagle3Outcome(), draft_ids_);
  if (context.device.info().graphs) {
    const int64_t learning = std::max(std::ssize(rows.queries), std::ssize(rows.teacher_rows));
    pad_eagle3_rows(rows, padded_rows(context.device, rows.tokens),
                    padded_rows(context.device, learning));
  }

  const Arena::Scope scope(context.arena);
  PERCHERON_RETURN_IF_ERROR(rope_.reserve(context, longest_document(features.batch) + rows.steps));
  Inputs in = upload_inputs(context, features, rows);
  in.teacher_logits = teacher_logits;
  const Results results{context.arena.take(DType::kF32, {in.steps, in.teachers}),
                        context.arena.take(DType::kI32, {in.steps, in.teachers}),
                        context.arena.take(DType::kI32, {1, in.teachers})};
  if (listener_ != nullptr) {  // It is told amid the pass, and a graph has no middle.
    const Arena::Scope pass(context.arena);
    compute(context, in, loss, results);
  } else {
    graphs_.run(context,
                graph_key({in.states, in.first_ids, in.first_positions, in.query_rows, in.ids,
                           in.positions, in.intervals, in.teacher_rows, in.learning_rows,
                           in.weights, in.teacher_logits, results.loss, rope_.cos(), rope_.sin()},
                          loss),
                [&] { compute(context, in, loss, results); });
  }
  PERCHERON_ASSIGN_OR_RETURN(const Eagle3Outcome outcome, read_back(context, results));
  return sum_up_eagle3(rows, outcome, draft_ids_);
}

Eagle3Drafter::Inputs Eagle3Drafter::upload_inputs(Context& context, const Features& features,
                                                   const Eagle3Rows& rows) const {
  Inputs in;
  in.tokens = std::ssize(rows.first_ids);
  in.queries = std::ssize(rows.queries);
  in.steps = rows.steps;
  in.teachers = std::ssize(rows.teacher_rows);
  in.states = upload_states(context, features, in.tokens, state_upload());
  in.first_ids = upload(context, rows.first_ids, {in.tokens});
  in.first_positions = upload(context, rows.first_positions, {in.tokens});
  in.query_rows = upload(context, rows.queries, {in.queries});
  in.ids = upload(context, rows.input_ids, {in.steps, in.queries});
  in.positions = upload(context, rows.positions, {in.steps, in.queries});
  in.intervals = upload(context, rows.intervals, {in.steps * in.queries, 4});
  in.teacher_rows = upload(context, rows.teacher_rows, {in.teachers});
  in.learning_rows = upload(context, rows.query_rows, {in.steps, in.teachers});
  in.weights = upload(context, rows.weights, {in.steps, in.teachers});
  return in;
}

void Eagle3Drafter::compute(Context& context, const Inputs& in, const LossConfig& loss,
                            const Results& results) const {
  const int64_t captured =
      static_cast<int64_t>(config_.capture.size()) * config_.target_hidden_size;
  Unrolled run;
  if (in.states.dim(1) > captured) {
    run.last = in.states.columns(captured, captured + config_.target_hidden_size);
  }
  fuse(context, in.states.columns(0, captured), run.fused);
  unroll(context, in, run);
  learn(context, in, loss, run, results);
  unroll_backward(context, run);
}

}  // namespace percheron
