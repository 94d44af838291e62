// Forward, backward and the loss stage of DFlash.

#include <algorithm>

#include "model/dflash.h"
#include "model/drafter_inputs.h"

namespace percheron {

/// states: [T, K H_t] of the features' dtype, possibly strided.
void DflashDrafter::fuse(Context& context, ConstTensorView states, Run& run) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t tokens = states.dim(0), hidden = config_.body.hidden_size;
  run.states = arena.take(dtype_, {tokens, states.dim(1)});
  run.fused = arena.take(DType::kF32, {tokens, hidden});
  run.fused_rms = arena.take(DType::kF32, {tokens});
  run.shared.context = arena.take(dtype_, {tokens, hidden});
  ops.copy(context, states, run.states);
  fc_proj_->forward(context, run.states, Write::kOverwrite, run.fused);
  ops.rms_norm(context, run.fused, hidden_norm_->value, epsilon_, run.shared.context,
               run.fused_rms);
}

void DflashDrafter::fuse_backward(Context& context, const Run& run) const {
  const TensorView dcontext = run.shared.dcontext;
  context.device.ops().rms_norm_backward(context, dcontext, run.fused, hidden_norm_->value,
                                         run.fused_rms, Write::kOverwrite, dcontext,
                                         hidden_norm_->gradient);
  tell_complete(context, listener_, {hidden_norm_});
  const Arena::Scope scope(context.arena);
  fc_proj_->backward(context, converted(context, dcontext, dtype_), run.states, Write::kOverwrite,
                     TensorView(), listener_);
}

void DflashDrafter::run_layers(Context& context, const DflashBlocks& blocks, Run& run) const {
  Arena& arena = context.arena;
  const int64_t queries = static_cast<int64_t>(blocks.input_ids.size());
  const int64_t hidden = config_.body.hidden_size;
  const TensorView ids = upload(context, blocks.input_ids, {queries});
  TensorView x = arena.take(DType::kF32, {queries, hidden});
  context.device.ops().gather_rows(context, target_.embedding, ids, x);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const TensorView out = arena.take(DType::kF32, {queries, hidden});
    layers_[i]->forward(context, rope_, run.shared, x, run.layers[i], out);
    x = out;
  }
  run.out = x;
}

void DflashDrafter::run_layers_backward(Context& context, Run& run) const {
  const Ops& ops = context.device.ops();
  run.shared.dcontext =
      context.arena.take(DType::kF32, {run.fused.dim(0), config_.body.hidden_size});
  ops.fill_zero(context, run.shared.dcontext);
  tell_complete(context, listener_, {norm_});  // by the loss
  for (size_t i = layers_.size(); i-- > 0;) {
    layers_[i]->backward(context, rope_, run.shared, run.layers[i], run.gradient, listener_);
  }
  fuse_backward(context, run);
}

/// Losses of the chunk's slots into `results`; with Gradient::kInPlace also dnormed [R, H].
void DflashDrafter::compare(Context& context, const DflashBlocks& blocks, const LossConfig& loss,
                            Gradient gradient, const Chunk& chunk, const Run& run, Results& results,
                            TensorView dnormed) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t count = chunk.end - chunk.begin;
  const size_t first = static_cast<size_t>(chunk.begin), n = static_cast<size_t>(count);
  const TensorView weights =
      upload(context, std::span<const float>(blocks.weights).subspan(first, n), {count});
  const TensorView logits = arena.take(DType::kF32, {count, config_.draft_vocab_size});
  const TensorView value = results.loss.rows(chunk.begin, chunk.end);
  const TensorView argmax = results.argmax.rows(chunk.begin, chunk.end);
  if (loss.hard_labels) {
    const TensorView labels =
        upload(context, std::span<const int32_t>(blocks.labels).subspan(first, n), {count});
    head_->forward(context, chunk.normed, logits);
    ops.cross_entropy(context, logits, labels, weights, gradient, value, argmax);
    if (gradient == Gradient::kInPlace) {
      head_->backward(context, logits, Write::kOverwrite, dnormed);
    }
    return;
  }
  const TensorView teacher = arena.take(DType::kF32, {count, config_.draft_vocab_size});
  teacher_logits(context, target_, *head_, run.last,
                 std::span<const int32_t>(blocks.teacher_rows).subspan(first, n), dtype_, teacher);
  const TensorView scaled = arena.take(DType::kF32, {count});
  const TensorView term_value = arena.take(DType::kF32, {count});
  ops.fill_zero(context, value);
  Write write = Write::kOverwrite;
  for (const LossTerm& term : loss_terms(loss)) {
    const float factor = static_cast<float>(term.factor);
    ops.fill_zero(context, scaled);
    ops.axpby(context, factor, weights, 1.0f, scaled);
    head_->forward(context, chunk.normed, logits);
    ops.teacher_loss(context, term.kind, logits, teacher, scaled, gradient, term_value, argmax,
                     results.teacher_argmax.rows(chunk.begin, chunk.end));
    ops.axpby(context, factor, term_value, 1.0f, value);
    if (gradient == Gradient::kInPlace) head_->backward(context, logits, write, dnormed);
    write = Write::kAdd;
  }
}

void DflashDrafter::learn_chunk(Context& context, const DflashBlocks& blocks,
                                const LossConfig& loss, Gradient gradient, Chunk chunk, Run& run,
                                Results& results) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const Arena::Scope scope(arena);
  const int64_t count = chunk.end - chunk.begin, hidden = config_.body.hidden_size;
  chunk.rows = upload(context,
                      std::span<const int32_t>(blocks.rows)
                          .subspan(static_cast<size_t>(chunk.begin), static_cast<size_t>(count)),
                      {count});
  chunk.outputs = arena.take(DType::kF32, {count, hidden});
  chunk.normed = arena.take(dtype_, {count, hidden});
  chunk.inverse_rms = arena.take(DType::kF32, {count});
  ops.gather_rows(context, run.out, chunk.rows, chunk.outputs);
  ops.rms_norm(context, chunk.outputs, norm_->value, epsilon_, chunk.normed, chunk.inverse_rms);
  const TensorView dnormed = arena.take(dtype_, {count, hidden});
  compare(context, blocks, loss, gradient, chunk, run, results, dnormed);
  if (gradient == Gradient::kNone) return;
  const TensorView doutputs = arena.take(DType::kF32, {count, hidden});
  ops.rms_norm_backward(context, dnormed, chunk.outputs, norm_->value, chunk.inverse_rms,
                        Write::kOverwrite, doutputs, norm_->gradient);
  ops.scatter_add_rows(context, doutputs, chunk.rows, run.gradient);
}

/// Only supervised slots reach the head, in chunks of rows. D-PACE's weights depend on the losses
/// of a whole block, so they take a first pass without gradients.
Result<DflashOutcome> DflashDrafter::learn(Context& context, DflashBlocks& blocks,
                                           const LossConfig& loss, Run& run) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t all = static_cast<int64_t>(blocks.rows.size());
  Results results;
  results.loss = arena.take(DType::kF32, {all});
  results.argmax = arena.take(DType::kI32, {all});
  results.teacher_argmax = arena.take(DType::kI32, {all});
  run.gradient = arena.take(DType::kF32, {run.out.dim(0), config_.body.hidden_size});
  ops.fill_zero(context, run.gradient);
  const int64_t chunk_rows = loss_chunk_rows(loss, config_.draft_vocab_size);
  const auto pass = [&](Gradient gradient) {
    for (int64_t begin = 0; begin < all; begin += chunk_rows) {
      Chunk chunk;
      chunk.begin = begin;
      chunk.end = std::min(all, begin + chunk_rows);
      learn_chunk(context, blocks, loss, gradient, chunk, run, results);
    }
  };
  DflashOutcome outcome;
  if (loss.position_weight == PositionWeight::kDpace) {
    pass(Gradient::kNone);
    download(context, results.loss, outcome.loss);
    PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
    blocks.weights = dpace_weights(outcome.loss, loss, blocks);
  }
  pass(Gradient::kInPlace);
  download(context, results.loss, outcome.loss);
  download(context, results.argmax, outcome.argmax);
  if (!loss.hard_labels) download(context, results.teacher_argmax, outcome.teacher_argmax);
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  return outcome;
}

}  // namespace percheron
