#include "model/eagle3_layer.h"

#include <cmath>

namespace percheron {

Eagle3Layer::Eagle3Layer(Context& context, const DrafterConfig& config, ParameterList& list)
    : config_(config),
      hidden_(config.body.hidden_size),
      heads_(config.body.num_attention_heads),
      kv_heads_(config.body.num_key_value_heads),
      head_dim_(config.body.head_dim),
      epsilon_(static_cast<float>(config.body.rms_norm_eps)),
      scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.body.head_dim)))) {
  const std::string name = "midlayer.";
  const int64_t queries = heads_ * head_dim_, keys = kv_heads_ * head_dim_;
  const int64_t inner = config.body.intermediate_size;
  hidden_norm_ = list.add(context, name + "hidden_norm.weight", {hidden_});
  input_norm_ = list.add(context, name + "input_layernorm.weight", {hidden_});
  q_ = list.add(context, name + "self_attn.q_proj.weight", {queries, 2 * hidden_});
  k_ = list.add(context, name + "self_attn.k_proj.weight", {keys, 2 * hidden_});
  v_ = list.add(context, name + "self_attn.v_proj.weight", {keys, 2 * hidden_});
  o_ = list.add(context, name + "self_attn.o_proj.weight", {hidden_, queries});
  if (config.body.qk_norm) {
    q_norm_ = list.add(context, name + "self_attn.q_norm.weight", {head_dim_});
    k_norm_ = list.add(context, name + "self_attn.k_norm.weight", {head_dim_});
  }
  post_norm_ = list.add(context, name + "post_attention_layernorm.weight", {hidden_});
  gate_ = list.add(context, name + "mlp.gate_proj.weight", {inner, hidden_});
  up_ = list.add(context, name + "mlp.up_proj.weight", {inner, hidden_});
  down_ = list.add(context, name + "mlp.down_proj.weight", {hidden_, inner});
}

void Eagle3Layer::build(Context& context, DType dtype) {
  dtype_ = activation_dtype(context.device, dtype);
  q_proj_ = std::make_unique<Linear>(context, std::vector<Parameter*>{q_}, dtype,
                                     Products::kForwardAndBackward);
  kv_proj_ = std::make_unique<Linear>(context, std::vector<Parameter*>{k_, v_}, dtype,
                                      Products::kForwardAndBackward);
  o_proj_ = std::make_unique<Linear>(context, std::vector<Parameter*>{o_}, dtype,
                                     Products::kForwardAndBackward);
  mlp_ = std::make_unique<MlpBlock>(context, post_norm_, gate_, up_, down_, epsilon_, dtype);
}

void Eagle3Layer::repack(Context& context) {
  q_proj_->repack(context);
  kv_proj_->repack(context);
  o_proj_->repack(context);
  mlp_->repack(context);
}

Eagle3Layer::KeysValues Eagle3Layer::make_keys_values(Context& context, int64_t tokens,
                                                      int64_t queries, int64_t steps) const {
  KeysValues kv;
  kv.tokens = tokens;
  kv.queries = queries;
  kv.steps = steps;
  const int64_t rows = tokens + queries * (steps - 1), columns = kv_heads_ * head_dim_;
  kv.keys = context.arena.take(dtype_, {rows, columns});
  kv.values = context.arena.take(dtype_, {rows, columns});
  // Keys of later steps lie within the tiles of earlier ones: masked, but they
  // must be finite.
  context.device.ops().fill_zero(context, kv.keys);
  context.device.ops().fill_zero(context, kv.values);
  return kv;
}

void Eagle3Layer::begin_backward(Context& context, KeysValues& kv) const {
  kv.dkeys = context.arena.take(DType::kF32, {kv.keys.dim(0), kv.keys.dim(1)});
  kv.dvalues = context.arena.take(DType::kF32, {kv.keys.dim(0), kv.keys.dim(1)});
  context.device.ops().fill_zero(context, kv.dkeys);
  context.device.ops().fill_zero(context, kv.dvalues);
}

/// The rows [T or A, kv heads * head_dim] of one step within a buffer of all
/// steps.
TensorView Eagle3Layer::slice(TensorView all, const KeysValues& kv, int64_t step) const {
  if (step == 0) return all.rows(0, kv.tokens);
  const int64_t columns = all.dim(1), apart = kv.steps - 1;
  TensorView view = all.rows(kv.tokens + step - 1, kv.tokens + step);
  view.assign(view.data(), all.dtype(), 2, {kv.queries, columns, 0, 0}, {apart * columns, 1, 0, 0});
  return view;
}

/// The rows that ask: their normalised inputs, and what their residual stream
/// starts from.
void Eagle3Layer::choose_queries(Context& context, Step& step, TensorView residual) const {
  const Ops& ops = context.device.ops();
  const bool all = !step.query_rows.present();
  step.query_normed = step.normed;
  if (all) {
    step.query_positions = step.positions;
  } else {
    step.query_normed = context.arena.take(dtype_, {residual.dim(0), 2 * hidden_});
    ops.gather_rows(context, step.normed, step.query_rows, step.query_normed);
  }
  if (config_.norm_before_residual) {
    ops.copy(context, step.query_normed.columns(hidden_, 2 * hidden_), residual);
  } else if (all) {
    ops.copy(context, step.hidden, residual);
  } else {
    ops.gather_rows(context, step.hidden, step.query_rows, residual);
  }
}

/// Queries, keys and values of a step: normalised per head where configured,
/// rotated, keys and values into `kv`.
void Eagle3Layer::project(Context& context, const RopeTable& rope, KeysValues& kv,
                          Step& step) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t rows = step.hidden.dim(0), queries = step.query_normed.dim(0);
  const int64_t columns = kv_heads_ * head_dim_;
  const TensorView q = arena.take(dtype_, {queries, heads_ * head_dim_});
  q_proj_->forward(context, step.query_normed, Write::kOverwrite, q);
  step.kv = arena.take(dtype_, {rows, 2 * columns});
  kv_proj_->forward(context, step.normed, Write::kOverwrite, step.kv);
  const TensorView k = step.kv.columns(0, columns);
  if (!step.own_keys.present()) {
    step.own_keys = slice(kv.keys, kv, step.index);
    step.own_values = slice(kv.values, kv, step.index);
  }
  const TensorView own_keys = step.own_keys;
  step.q = q.heads(head_dim_);
  step.rotated_q = step.q;
  if (config_.body.qk_norm) {
    step.rotated_q = arena.take(dtype_, {queries, heads_, head_dim_});
    step.q_rms = arena.take(DType::kF32, {queries, heads_});
    step.k_rms = arena.take(DType::kF32, {rows, kv_heads_});
    ops.rms_norm(context, step.q, q_norm_->value, epsilon_, step.rotated_q, step.q_rms);
    ops.rms_norm(context, k.heads(head_dim_), k_norm_->value, epsilon_, own_keys.heads(head_dim_),
                 step.k_rms);
  } else {
    ops.copy(context, k, own_keys);
  }
  ops.rotary(context, step.rotated_q, step.query_positions, rope.cos(), rope.sin(),
             RotaryDirection::kForward);
  ops.rotary(context, own_keys.heads(head_dim_), step.positions, rope.cos(), rope.sin(),
             RotaryDirection::kForward);
  ops.copy(context, step.kv.columns(columns, 2 * columns), step.own_values);
}

void Eagle3Layer::forward(Context& context, ConstTensorView embedding, const RopeTable& rope,
                          KeysValues& kv, Step& step) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t rows = step.hidden.dim(0);
  const int64_t queries = step.query_rows.present() ? step.query_rows.dim(0) : rows;
  step.embedded = arena.take(dtype_, {rows, hidden_});
  step.embedded_rms = arena.take(DType::kF32, {rows});
  step.hidden_rms = arena.take(DType::kF32, {rows});
  step.normed = arena.take(dtype_, {rows, 2 * hidden_});
  ops.gather_rows(context, embedding, step.input_ids, step.embedded);
  ops.rms_norm(context, step.embedded, input_norm_->value, epsilon_,
               step.normed.columns(0, hidden_), step.embedded_rms);
  ops.rms_norm(context, step.hidden, hidden_norm_->value, epsilon_,
               step.normed.columns(hidden_, 2 * hidden_), step.hidden_rms);
  const TensorView residual = arena.take(DType::kF32, {queries, hidden_});
  choose_queries(context, step, residual);
  project(context, rope, kv, step);

  step.attended = arena.take(dtype_, {queries, heads_ * head_dim_});
  step.log_sum_exp = arena.take(DType::kF32, {queries, heads_});
  ops.attention(context, step.rotated_q, kv.keys.heads(head_dim_), kv.values.heads(head_dim_),
                step.intervals, scale_, step.attended.heads(head_dim_), step.log_sum_exp);
  o_proj_->forward(context, step.attended, Write::kAdd, residual);
  step.out = arena.take(DType::kF32, {queries, hidden_});
  mlp_->forward(context, residual, step.mlp, step.out);
}

/// From the gradient of the residual stream after attention to that of the
/// queries [A, heads * D] before norm and rotary; keys' and values' gradients
/// are added to `kv`.
TensorView Eagle3Layer::attend_backward(Context& context, const RopeTable& rope, KeysValues& kv,
                                        const Step& step, ConstTensorView dresidual,
                                        GradientListener* listener) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t queries = dresidual.dim(0), columns = heads_ * head_dim_;
  const TensorView dattended = arena.take(dtype_, {queries, columns});
  o_proj_->backward(context, dresidual, step.attended, Write::kOverwrite, dattended, listener);
  const TensorView dq = arena.take(dtype_, {queries, columns});
  ops.attention_backward(
      context, dattended.heads(head_dim_), step.rotated_q, kv.keys.heads(head_dim_),
      kv.values.heads(head_dim_), step.attended.heads(head_dim_), step.log_sum_exp, step.intervals,
      scale_, dq.heads(head_dim_), kv.dkeys.heads(head_dim_), kv.dvalues.heads(head_dim_));
  ops.rotary(context, dq.heads(head_dim_), step.query_positions, rope.cos(), rope.sin(),
             RotaryDirection::kBackward);
  if (config_.body.qk_norm) {
    ops.rms_norm_backward(context, dq.heads(head_dim_), step.q, q_norm_->value, step.q_rms,
                          Write::kOverwrite, dq.heads(head_dim_), q_norm_->gradient);
    tell_complete(context, listener, {q_norm_});
  }
  return dq;
}

/// From the gradients of queries (dq), keys and values (kv), and of the
/// residual stream where it starts from the normalised hidden state, to that of
/// step.normed [N, 2 H].
TensorView Eagle3Layer::project_backward(Context& context, const RopeTable& rope, KeysValues& kv,
                                         const Step& step, TensorView dq, ConstTensorView gradient,
                                         GradientListener* listener) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t rows = step.hidden.dim(0), columns = kv_heads_ * head_dim_;
  const TensorView dk = slice(kv.dkeys, kv, step.index);
  ops.rotary(context, dk.heads(head_dim_), step.positions, rope.cos(), rope.sin(),
             RotaryDirection::kBackward);
  if (config_.body.qk_norm) {
    ops.rms_norm_backward(context, dk.heads(head_dim_),
                          step.kv.columns(0, columns).heads(head_dim_), k_norm_->value, step.k_rms,
                          Write::kOverwrite, dk.heads(head_dim_), k_norm_->gradient);
    tell_complete(context, listener, {k_norm_});
  }
  const TensorView dkv = arena.take(dtype_, {rows, 2 * columns});
  ops.copy(context, dk, dkv.columns(0, columns));
  ops.copy(context, slice(kv.dvalues, kv, step.index), dkv.columns(columns, 2 * columns));

  const TensorView dquery = arena.take(dtype_, {dq.dim(0), 2 * hidden_});
  q_proj_->backward(context, dq, step.query_normed, Write::kOverwrite, dquery, listener);
  if (config_.norm_before_residual) {
    ops.add(context, gradient, dquery.columns(hidden_, 2 * hidden_));
  }
  if (!step.query_rows.present()) {
    kv_proj_->backward(context, dkv, step.normed, Write::kAdd, dquery, listener);
    return dquery;
  }
  const TensorView dnormed = arena.take(DType::kF32, {rows, 2 * hidden_});
  kv_proj_->backward(context, dkv, step.normed, Write::kOverwrite, dnormed, listener);
  ops.scatter_add_rows(context, dquery, step.query_rows, dnormed);
  return dnormed;
}

void Eagle3Layer::backward(Context& context, const RopeTable& rope, KeysValues& kv,
                           const Step& step, TensorView gradient, TensorView dhidden,
                           GradientListener* listener) const {
  const Ops& ops = context.device.ops();
  const Arena::Scope scope(context.arena);
  mlp_->backward(context, step.mlp, gradient, listener);
  const TensorView dq =
      attend_backward(context, rope, kv, step, converted(context, gradient, dtype_), listener);
  const TensorView dnormed = project_backward(context, rope, kv, step, dq, gradient, listener);
  const TensorView dembedded = dnormed.columns(0, hidden_);
  ops.rms_norm_backward(context, dembedded, step.embedded, input_norm_->value, step.embedded_rms,
                        Write::kOverwrite, dembedded, input_norm_->gradient);
  tell_complete(context, listener, {input_norm_});
  // The residual stream passes the gradient on as it is, unless it starts from
  // the normed state.
  const bool all = !step.query_rows.present();
  const Write write = all && !config_.norm_before_residual ? Write::kAdd : Write::kOverwrite;
  ops.rms_norm_backward(context, dnormed.columns(hidden_, 2 * hidden_), step.hidden,
                        hidden_norm_->value, step.hidden_rms, write, dhidden,
                        hidden_norm_->gradient);
  tell_complete(context, listener, {hidden_norm_});
  if (!all && !config_.norm_before_residual) {
    ops.scatter_add_rows(context, gradient, step.query_rows, dhidden);
  }
}

}  // namespace percheron
