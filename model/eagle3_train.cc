// Forward and backward through fc and the unrolled steps; the loss stage is in
// eagle3_loss.cc.

#include "model/eagle3.h"

namespace percheron {

/// states: [T, K H_t] of the features' dtype, possibly strided.
void Eagle3Drafter::fuse(Context& context, ConstTensorView states, Fused& fused) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t tokens = states.dim(0), width = states.dim(1);
  fused.states = arena.take(dtype_, {tokens, width});
  ops.copy(context, states, fused.states);
  fused.normed = fused.states;
  if (!fc_norms_.empty()) {
    const int64_t count = static_cast<int64_t>(fc_norms_.size()), columns = width / count;
    fused.normed = arena.take(dtype_, {tokens, width});
    fused.rms = arena.take(DType::kF32, {count, tokens});
    for (int64_t j = 0; j < count; ++j) {
      ops.rms_norm(context, fused.states.columns(j * columns, (j + 1) * columns),
                   fc_norms_[j]->value, epsilon_,
                   fused.normed.columns(j * columns, (j + 1) * columns),
                   fused.rms.rows(j, j + 1).reshaped({tokens}));
    }
  }
  fused.hidden = arena.take(DType::kF32, {tokens, config_.body.hidden_size});
  fc_proj_->forward(context, fused.normed, Write::kOverwrite, fused.hidden);
}

/// gradient: [T, H] f32, of fused.hidden. The captured states themselves get
/// none: the target is frozen.
void Eagle3Drafter::fuse_backward(Context& context, const Fused& fused,
                                  ConstTensorView gradient) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const Arena::Scope scope(arena);
  const int64_t tokens = fused.states.dim(0), width = fused.states.dim(1);
  const ConstTensorView dhidden = converted(context, gradient, dtype_);
  if (fc_norms_.empty()) {
    fc_proj_->backward(context, dhidden, fused.normed, Write::kOverwrite, TensorView(), listener_);
    return;
  }
  const TensorView dnormed = arena.take(dtype_, {tokens, width});
  fc_proj_->backward(context, dhidden, fused.normed, Write::kOverwrite, dnormed, listener_);
  const int64_t count = static_cast<int64_t>(fc_norms_.size()), columns = width / count;
  for (int64_t j = 0; j < count; ++j) {
    const TensorView d = dnormed.columns(j * columns, (j + 1) * columns);
    ops.rms_norm_backward(context, d, fused.states.columns(j * columns, (j + 1) * columns),
                          fc_norms_[j]->value, fused.rms.rows(j, j + 1).reshaped({tokens}),
                          Write::kOverwrite, d, fc_norms_[j]->gradient);
    tell_complete(context, listener_, {fc_norms_[j]});
  }
}

void Eagle3Drafter::unroll(Context& context, const Inputs& in, Unrolled& run) const {
  Arena& arena = context.arena;
  const int64_t steps = in.steps, queries = in.queries, hidden = config_.body.hidden_size;
  run.kv = layer_->make_keys_values(context, in.tokens, queries, steps);
  TensorView hidden_states = run.fused.hidden;
  for (int64_t k = 0; k < steps; ++k) {
    Step step;
    step.index = k;
    step.input_ids = in.ids.rows(k, k + 1).reshaped({queries});
    step.positions = in.positions.rows(k, k + 1).reshaped({queries});
    step.intervals = in.intervals.rows(k * queries, (k + 1) * queries);
    step.hidden = hidden_states;
    if (k == 0) {
      step.query_rows = in.query_rows;
      step.query_positions = step.positions;
      step.input_ids = in.first_ids;
      step.positions = in.first_positions;
    }
    layer_->forward(context, target_.embedding, rope_, run.kv, step);
    hidden_states = step.out;
    if (config_.norm_output) {
      run.fed.push_back(arena.take(DType::kF32, {queries, hidden}));
      run.fed_rms.push_back(arena.take(DType::kF32, {queries}));
      context.device.ops().rms_norm(context, step.out, norm_->value, epsilon_, run.fed.back(),
                                    run.fed_rms.back());
      hidden_states = run.fed.back();
    }
    run.steps.push_back(step);
  }
}

/// Through all steps in reverse: what a step reads, it passes its gradient to
/// (full back-propagation through time).
void Eagle3Drafter::unroll_backward(Context& context, Unrolled& run) const {
  const Ops& ops = context.device.ops();
  tell_complete(context, listener_, {head_});  // by the loss
  if (!config_.norm_output) tell_complete(context, listener_, {norm_});
  layer_->begin_backward(context, run.kv);
  const TensorView dfused =
      context.arena.take(DType::kF32, {run.kv.tokens, config_.body.hidden_size});
  for (size_t k = run.steps.size(); k-- > 0;) {
    GradientListener* const listener = k == 0 ? listener_ : nullptr;  // All steps add to them.
    const TensorView gradient = run.gradients[k];
    if (config_.norm_output) {
      ops.rms_norm_backward(context, gradient, run.steps[k].out, norm_->value, run.fed_rms[k],
                            Write::kOverwrite, gradient, norm_->gradient);
      tell_complete(context, listener, {norm_});
    }
    layer_->backward(context, rope_, run.kv, run.steps[k], gradient, k == 0 ? dfused : gradient,
                     listener);
    if (k > 0) ops.add(context, gradient, run.gradients[k - 1]);
  }
  fuse_backward(context, run.fused, dfused);
}

}  // namespace percheron
