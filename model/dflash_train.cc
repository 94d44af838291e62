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

DflashDrafter::Run DflashDrafter::run_forward(Context& context, const Inputs& in) const {
  const int64_t captured =
      static_cast<int64_t>(config_.capture.size()) * config_.target_hidden_size;
  Run run;
  if (in.states.dim(1) > captured) {
    run.last = in.states.columns(captured, captured + config_.target_hidden_size);
  }
  fuse(context, in.states.columns(0, captured), run);
  run.shared.key_positions = in.key_positions;
  run.shared.query_positions = in.key_positions.rows(in.tokens, in.tokens + in.queries);
  for (const TensorView& intervals : in.intervals) {
    run.layers.emplace_back();
    run.layers.back().intervals = intervals;
  }
  run_layers(context, in, run);
  return run;
}

void DflashDrafter::run_layers(Context& context, const Inputs& in, Run& run) const {
  Arena& arena = context.arena;
  const int64_t queries = in.queries, hidden = config_.body.hidden_size;
  TensorView x = arena.take(DType::kF32, {queries, hidden});
  context.device.ops().gather_rows(context, target_.embedding, in.ids, x);
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
void DflashDrafter::compare(Context& context, const Inputs& in, const LossConfig& loss,
                            Gradient gradient, const Chunk& chunk, const Run& run,
                            const Results& results, TensorView dnormed) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t count = chunk.end - chunk.begin;
  const TensorView weights = in.weights.rows(chunk.begin, chunk.end);
  const TensorView logits = arena.take(DType::kF32, {count, config_.draft_vocab_size});
  const TensorView value = results.loss.rows(chunk.begin, chunk.end);
  const TensorView argmax = results.argmax.rows(chunk.begin, chunk.end);
  if (loss.hard_labels) {
    const TensorView labels = in.labels.rows(chunk.begin, chunk.end);
    head_->forward(context, chunk.normed, logits);
    ops.cross_entropy(context, logits, labels, weights, gradient, value, argmax);
    if (gradient == Gradient::kInPlace) {
      head_->backward(context, logits, Write::kOverwrite, dnormed);
    }
    return;
  }
  const TensorView teacher = arena.take(DType::kF32, {count, config_.draft_vocab_size});
  teacher_logits(context, target_, *head_, run.last, in.teacher_rows.rows(chunk.begin, chunk.end),
                 dtype_, teacher);
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

void DflashDrafter::learn_chunk(Context& context, const Inputs& in, const LossConfig& loss,
                                Gradient gradient, Chunk chunk, Run& run,
                                const Results& results) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const Arena::Scope scope(arena);
  const int64_t count = chunk.end - chunk.begin, hidden = config_.body.hidden_size;
  chunk.rows = in.rows.rows(chunk.begin, chunk.end);
  chunk.outputs = arena.take(DType::kF32, {count, hidden});
  chunk.normed = arena.take(dtype_, {count, hidden});
  chunk.inverse_rms = arena.take(DType::kF32, {count});
  ops.gather_rows(context, run.out, chunk.rows, chunk.outputs);
  ops.rms_norm(context, chunk.outputs, norm_->value, epsilon_, chunk.normed, chunk.inverse_rms);
  const TensorView dnormed = arena.take(dtype_, {count, hidden});
  compare(context, in, loss, gradient, chunk, run, results, dnormed);
  if (gradient == Gradient::kNone) return;
  const TensorView doutputs = arena.take(DType::kF32, {count, hidden});
  ops.rms_norm_backward(context, dnormed, chunk.outputs, norm_->value, chunk.inverse_rms,
                        Write::kOverwrite, doutputs, norm_->gradient);
  ops.scatter_add_rows(context, doutputs, chunk.rows, run.gradient);
}

void DflashDrafter::learn(Context& context, const Inputs& in, const LossConfig& loss,
                          Gradient gradient, Run& run, const Results& results) const {
  if (gradient == Gradient::kInPlace) {
    run.gradient = context.arena.take(DType::kF32, {run.out.dim(0), config_.body.hidden_size});
    context.device.ops().fill_zero(context, run.gradient);
  }
  const int64_t chunk_rows = loss_chunk_rows(loss, config_.draft_vocab_size);
  for (int64_t begin = 0; begin < in.trained; begin += chunk_rows) {
    Chunk chunk;
    chunk.begin = begin;
    chunk.end = std::min(in.trained, begin + chunk_rows);
    learn_chunk(context, in, loss, gradient, chunk, run, results);
  }
}

Status DflashDrafter::weigh(Context& context, const LossConfig& loss, DflashBlocks& blocks,
                            const Inputs& in, const Results& results) const {
  // The one wait amid a micro-batch: the host turns the losses of whole blocks into weights.
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> losses,
                             to_host<float>(context, results.loss));  // of padding, too
  blocks.weights = dpace_weights(losses, loss, blocks);
  context.device.upload_bytes(context.stream, in.weights.data(), blocks.weights.data(),
                              blocks.weights.size() * sizeof(float));
  return ok_status();
}

}  // namespace percheron
