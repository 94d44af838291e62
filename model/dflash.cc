#include "model/dflash.h"

#include <fmt/format.h>

#include <utility>

#include "model/drafter_inputs.h"

namespace percheron {
namespace {

Status check_config(const DrafterConfig& config, const TargetParts& target,
                    std::span<const int32_t> draft_ids) {
  const ModelConfig& body = config.body;
  if (body.num_hidden_layers < 1) {
    return invalid_argument(
        fmt::format("drafter: num_hidden_layers is {}, DFlash needs at least one layer",
                    body.num_hidden_layers));
  }
  if (body.qkv_bias || body.o_bias || body.mlp_bias) {
    return invalid_argument(
        "drafter: attention_bias and mlp_bias must be false, they are not supported");
  }
  if (config.capture.empty()) return invalid_argument("drafter.capture names no layer");
  if (config.block_size < 2) {
    return invalid_argument(
        fmt::format("drafter.block_size is {}: a block is an anchor and at least one draft",
                    config.block_size));
  }
  if (config.mask_token_id < 0 || config.mask_token_id >= target.embedding.dim(0)) {
    return invalid_argument(
        fmt::format("drafter.mask_token_id {} is outside the target's table of {} rows",
                    config.mask_token_id, target.embedding.dim(0)));
  }
  if (target.embedding.dim(1) != body.hidden_size || target.head.dim(1) != body.hidden_size) {
    return invalid_argument(fmt::format(
        "drafter: hidden_size {} differs from the target's {}, whose embedding and head it uses",
        body.hidden_size, target.embedding.dim(1)));
  }
  return check_draft_ids(draft_ids, config.draft_vocab_size, target.head.dim(0));
}

}  // namespace

DflashDrafter::DflashDrafter(Context& context, const DrafterConfig& config,
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
  const int64_t hidden = config.body.hidden_size;
  const int64_t states = static_cast<int64_t>(config.capture.size());
  fc_ = list_.add(context, "fc.weight", {hidden, states * config.target_hidden_size});
  hidden_norm_ = list_.add(context, "hidden_norm.weight", {hidden});
  for (int64_t i = 0; i < config.body.num_hidden_layers; ++i) {
    layers_.push_back(std::make_unique<DflashLayer>(context, config, i, list_));
  }
  norm_ = list_.add(context, "norm.weight", {hidden});
}

Result<std::unique_ptr<DflashDrafter>> DflashDrafter::make(Context& context,
                                                           const DrafterConfig& config,
                                                           const TargetParts& target,
                                                           std::vector<int32_t> draft_ids,
                                                           DType compute_dtype, uint64_t seed) {
  PERCHERON_RETURN_IF_ERROR(check_config(config, target, draft_ids));
  const DType dtype = activation_dtype(context.device, compute_dtype);
  std::unique_ptr<DflashDrafter> drafter(
      new DflashDrafter(context, config, target, std::move(draft_ids), dtype));
  PERCHERON_RETURN_IF_ERROR(drafter->list_.status());
  PERCHERON_RETURN_IF_ERROR(drafter->list_.initialise(context, seed));
  drafter->fc_proj_ = std::make_unique<Linear>(context, std::vector<Parameter*>{drafter->fc_},
                                               compute_dtype, Products::kForward);
  for (const auto& layer : drafter->layers_) layer->build(context, compute_dtype);
  drafter->head_ = std::make_unique<FrozenHead>(context, target.head, drafter->draft_ids_,
                                                compute_dtype, Products::kForwardAndBackward);
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  return drafter;
}

void DflashDrafter::weights_changed(Context& context) {
  fc_proj_->repack(context);
  for (const auto& layer : layers_) layer->repack(context);
}

Status DflashDrafter::check(const Features& features, const LossConfig& loss) const {
  PERCHERON_RETURN_IF_ERROR(check_features(features, config_, target_.embedding.dim(0)));
  if (!loss.hard_labels && !features.has_last) {
    return invalid_argument(
        "this loss compares with the target's last layer, which the features lack; capture them "
        "with features.last or set loss.hard_labels");
  }
  if (loss.position_weight == PositionWeight::kExponential && !(loss.gamma > 0)) {
    return invalid_argument(fmt::format("loss.gamma is {}, it must be positive", loss.gamma));
  }
  return ok_status();
}

Result<StepSums> DflashDrafter::forward_backward(Context& context, const Features& features,
                                                 const LossConfig& loss) {
  return forward_backward_at(context, features, loss, draw_anchors(features.batch, loss));
}

Result<StepSums> DflashDrafter::forward_backward_at(Context& context, const Features& features,
                                                    const LossConfig& loss,
                                                    std::vector<DflashAnchor> anchors) {
  begin_pass();
  PERCHERON_RETURN_IF_ERROR(check(features, loss));
  PERCHERON_ASSIGN_OR_RETURN(
      DflashBlocks blocks,
      plan_dflash_blocks(features, config_, loss, std::move(anchors), to_draft_));
  if (blocks.rows.empty()) return sum_up_dflash(blocks, DflashOutcome(), draft_ids_);

  const Arena::Scope scope(context.arena);
  PERCHERON_RETURN_IF_ERROR(
      rope_.reserve(context, longest_document(features.batch) + config_.block_size));
  const Inputs in = upload_inputs(context, features, blocks);
  const Results results{context.arena.take(DType::kF32, {in.trained}),
                        context.arena.take(DType::kI32, {in.trained}),
                        context.arena.take(DType::kI32, {in.trained})};
  const bool dpace = loss.position_weight == PositionWeight::kDpace;
  if (dpace || listener_ != nullptr) {  // Something happens amid the pass: a graph has no middle.
    Run run = run_forward(context, in);
    if (dpace) {
      learn(context, in, loss, Gradient::kNone, run, results);
      PERCHERON_RETURN_IF_ERROR(weigh(context, loss, blocks, in, results));
    }
    learn(context, in, loss, Gradient::kInPlace, run, results);
    run_layers_backward(context, run);
  } else {
    std::vector<uint64_t> key =
        graph_key({in.states, in.ids, in.key_positions, in.rows, in.labels, in.teacher_rows,
                   in.weights, results.loss, rope_.cos(), rope_.sin()},
                  loss);
    for (const TensorView& x : in.intervals) key.push_back(reinterpret_cast<uintptr_t>(x.data()));
    graphs_.run(context, key, [&] {
      Run run = run_forward(context, in);
      learn(context, in, loss, Gradient::kInPlace, run, results);
      run_layers_backward(context, run);
    });
  }
  DflashOutcome outcome;
  download(context, results.loss, outcome.loss);
  download(context, results.argmax, outcome.argmax);
  if (!loss.hard_labels) download(context, results.teacher_argmax, outcome.teacher_argmax);
  // The losses are told now; and what the host read from may go.
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  return sum_up_dflash(blocks, outcome, draft_ids_);
}

DflashDrafter::Inputs DflashDrafter::upload_inputs(Context& context, const Features& features,
                                                   const DflashBlocks& blocks) const {
  const Device& device = context.device;
  const int64_t tokens = blocks.tokens, queries = std::ssize(blocks.input_ids);
  Inputs in;
  in.tokens = padded_rows(device, tokens);
  const int64_t size = blocks.block_size;
  in.queries = (padded_rows(device, queries) + size - 1) / size * size;
  in.trained = padded_rows(device, std::ssize(blocks.rows));
  in.states = upload_states(context, features, in.tokens, state_upload());
  // What is added behind sees no keys, is seen by no row and learns nothing.
  const auto padded = [&](auto values, int64_t rows, auto fill) {
    values.resize(static_cast<size_t>(rows), fill);
    return upload(context, values, {rows});
  };
  in.ids = padded(blocks.input_ids, in.queries, 0);
  std::vector<int32_t> key_positions = blocks.context_positions;
  key_positions.resize(static_cast<size_t>(in.tokens), 0);
  key_positions.insert(key_positions.end(), blocks.block_positions.begin(),
                       blocks.block_positions.end());
  in.key_positions = padded(std::move(key_positions), in.tokens + in.queries, 0);
  for (size_t i = 0; i < layers_.size(); ++i) {
    std::vector<int32_t> intervals = dflash_intervals(blocks, config_, window_of(config_, i));
    for (size_t at = 0; at < intervals.size(); at += 4) {  // a block's own keys
      for (size_t bound : {at + 2, at + 3}) {
        intervals[bound] += static_cast<int32_t>(in.tokens - tokens);
      }
    }
    in.intervals.push_back(
        upload(context, widened(std::span<const int32_t>(intervals), queries, in.queries, 4, 0),
               {in.queries, 4}));
  }
  in.rows = padded(blocks.rows, in.trained, -1);
  in.labels = padded(blocks.labels, in.trained, 0);
  in.teacher_rows = padded(blocks.teacher_rows, in.trained, -1);
  in.weights = padded(blocks.weights, in.trained, 0.0f);
  return in;
}

}  // namespace percheron
