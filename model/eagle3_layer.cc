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
  dtype_ = dtype;
  qkv_proj_ = std::make_unique<Linear>(context, std::vector<Parameter*>{q_, k_, v_}, dtype, true);
  o_proj_ = std::make_unique<Linear>(context, std::vector<Parameter*>{o_}, dtype, true);
  mlp_ = std::make_unique<MlpBlock>(context, post_norm_, gate_, up_, down_, epsilon_, dtype);
}

void Eagle3Layer::repack(Context& context) {
  qkv_proj_->repack(context);
  o_proj_->repack(context);
  mlp_->repack(context);
}

Eagle3Layer::KeysValues Eagle3Layer::make_keys_values(Context& context, int64_t tokens,
                                                      int64_t steps) const {
  KeysValues kv;
  kv.tokens = tokens;
  kv.steps = steps;
  kv.keys = context.arena.take(dtype_, {tokens * steps, kv_heads_ * head_dim_});
  kv.values = context.arena.take(dtype_, {tokens * steps, kv_heads_ * head_dim_});
  // Keys of later steps lie within the tiles of earlier ones: masked, but they must be finite.
  context.device.ops().fill_zero(context, kv.keys);
  context.device.ops().fill_zero(context, kv.values);
  return kv;
}

void Eagle3Layer::begin_backward(Context& context, KeysValues& kv) const {
  kv.dkeys = context.arena.take(DType::kF32, {kv.tokens * kv.steps, kv_heads_ * head_dim_});
  kv.dvalues = context.arena.take(DType::kF32, {kv.tokens * kv.steps, kv_heads_ * head_dim_});
  context.device.ops().fill_zero(context, kv.dkeys);
  context.device.ops().fill_zero(context, kv.dvalues);
}

/// The rows [T, kv heads * head_dim] of one step within a buffer of all steps.
TensorView Eagle3Layer::slice(TensorView all, const KeysValues& kv, int64_t step) const {
  if (step == 0) return all.rows(0, kv.tokens);
  const int64_t columns = all.dim(1), apart = kv.steps - 1;
  TensorView view = all.rows(kv.tokens + step - 1, kv.tokens + step);
  view.assign(view.data(), all.dtype(), 2, {kv.tokens, columns, 0, 0}, {apart * columns, 1, 0, 0});
  return view;
}

/// Queries, keys and values of a step: normalised per head where configured, rotated, keys and
/// values into `kv`.
void Eagle3Layer::project(Context& context, const RopeTable& rope, KeysValues& kv,
                          Step& step) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t tokens = step.hidden.dim(0);
  const int64_t queries = heads_ * head_dim_, keys = kv_heads_ * head_dim_;
  step.qkv = arena.take(dtype_, {tokens, queries + 2 * keys});
  qkv_proj_->forward(context, step.normed, Write::kOverwrite, step.qkv);
  const TensorView q = step.qkv.columns(0, queries);
  const TensorView k = step.qkv.columns(queries, queries + keys);
  if (!step.own_keys.present()) {
    step.own_keys = slice(kv.keys, kv, step.index);
    step.own_values = slice(kv.values, kv, step.index);
  }
  const TensorView own_keys = step.own_keys;
  step.q = q.heads(head_dim_);
  if (config_.body.qk_norm) {
    step.q = arena.take(dtype_, {tokens, heads_, head_dim_});
    step.q_rms = arena.take(DType::kF32, {tokens, heads_});
    step.k_rms = arena.take(DType::kF32, {tokens, kv_heads_});
    ops.rms_norm(context, q.heads(head_dim_), q_norm_->value, epsilon_, step.q, step.q_rms);
    ops.rms_norm(context, k.heads(head_dim_), k_norm_->value, epsilon_, own_keys.heads(head_dim_),
                 step.k_rms);
  } else {
    ops.copy(context, k, own_keys);
  }
  ops.rotary(context, step.q, step.positions, rope.cos(), rope.sin(), RotaryDirection::kForward);
  ops.rotary(context, own_keys.heads(head_dim_), step.positions, rope.cos(), rope.sin(),
             RotaryDirection::kForward);
  ops.copy(context, step.qkv.columns(queries + keys, queries + 2 * keys), step.own_values);
}

void Eagle3Layer::forward(Context& context, ConstTensorView embedding, const RopeTable& rope,
                          KeysValues& kv, Step& step) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t tokens = step.hidden.dim(0);
  step.embedded = arena.take(dtype_, {tokens, hidden_});
  step.embedded_rms = arena.take(DType::kF32, {tokens});
  step.hidden_rms = arena.take(DType::kF32, {tokens});
  step.normed = arena.take(dtype_, {tokens, 2 * hidden_});
  ops.gather_rows(context, embedding, step.input_ids, step.embedded);
  ops.rms_norm(context, step.embedded, input_norm_->value, epsilon_,
               step.normed.columns(0, hidden_), step.embedded_rms);
  ops.rms_norm(context, step.hidden, hidden_norm_->value, epsilon_,
               step.normed.columns(hidden_, 2 * hidden_), step.hidden_rms);
  project(context, rope, kv, step);

  step.attended = arena.take(dtype_, {tokens, heads_ * head_dim_});
  step.log_sum_exp = arena.take(DType::kF32, {tokens, heads_});
  ops.attention(context, step.q, kv.keys.heads(head_dim_), kv.values.heads(head_dim_),
                step.intervals, scale_, step.attended.heads(head_dim_), step.log_sum_exp);
  const TensorView residual = arena.take(DType::kF32, {tokens, hidden_});
  const ConstTensorView base = config_.norm_before_residual
                                   ? ConstTensorView(step.normed.columns(hidden_, 2 * hidden_))
                                   : ConstTensorView(step.hidden);
  ops.copy(context, base, residual);
  o_proj_->forward(context, step.attended, Write::kAdd, residual);
  step.out = arena.take(DType::kF32, {tokens, hidden_});
  mlp_->forward(context, residual, step.mlp, step.out);
}

/// From the gradients of rotated queries (dq), keys and values (kv) to that of the stacked
/// projection.
void Eagle3Layer::project_backward(Context& context, const RopeTable& rope, KeysValues& kv,
                                   const Step& step, TensorView dq, TensorView dqkv) const {
  const Ops& ops = context.device.ops();
  const int64_t queries = heads_ * head_dim_, keys = kv_heads_ * head_dim_;
  const TensorView dk = slice(kv.dkeys, kv, step.index);
  ops.rotary(context, dq, step.positions, rope.cos(), rope.sin(), RotaryDirection::kBackward);
  ops.rotary(context, dk.heads(head_dim_), step.positions, rope.cos(), rope.sin(),
             RotaryDirection::kBackward);
  if (config_.body.qk_norm) {
    const TensorView q = step.qkv.columns(0, queries).heads(head_dim_);
    const TensorView k = step.qkv.columns(queries, queries + keys).heads(head_dim_);
    ops.rms_norm_backward(context, dq, q, q_norm_->value, step.q_rms, Write::kOverwrite, dq,
                          q_norm_->gradient);
    ops.rms_norm_backward(context, dk.heads(head_dim_), k, k_norm_->value, step.k_rms,
                          Write::kOverwrite, dk.heads(head_dim_), k_norm_->gradient);
  }
  ops.copy(context, dk, dqkv.columns(queries, queries + keys));
  ops.copy(context, slice(kv.dvalues, kv, step.index),
           dqkv.columns(queries + keys, queries + 2 * keys));
}

void Eagle3Layer::backward(Context& context, const RopeTable& rope, KeysValues& kv,
                           const Step& step, TensorView gradient) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const Arena::Scope scope(arena);
  const int64_t tokens = kv.tokens, queries = heads_ * head_dim_, keys = kv_heads_ * head_dim_;
  mlp_->backward(context, step.mlp, gradient);

  const ConstTensorView dresidual = converted(context, gradient, dtype_);
  const TensorView dattended = arena.take(dtype_, {tokens, queries});
  o_proj_->backward(context, dresidual, step.attended, Write::kOverwrite, dattended);
  const TensorView dqkv = arena.take(dtype_, {tokens, queries + 2 * keys});
  const TensorView dq = dqkv.columns(0, queries).heads(head_dim_);
  ops.attention_backward(context, dattended.heads(head_dim_), step.q, kv.keys.heads(head_dim_),
                         kv.values.heads(head_dim_), step.attended.heads(head_dim_),
                         step.log_sum_exp, step.intervals, scale_, dq, kv.dkeys.heads(head_dim_),
                         kv.dvalues.heads(head_dim_));
  project_backward(context, rope, kv, step, dq, dqkv);

  const TensorView dnormed = arena.take(dtype_, {tokens, 2 * hidden_});
  qkv_proj_->backward(context, dqkv, step.normed, Write::kOverwrite, dnormed);
  const TensorView dembedded = dnormed.columns(0, hidden_);
  ops.rms_norm_backward(context, dembedded, step.embedded, input_norm_->value, step.embedded_rms,
                        Write::kOverwrite, dembedded, input_norm_->gradient);
  const TensorView dhidden = dnormed.columns(hidden_, 2 * hidden_);
  Write write = Write::kAdd;  // The residual stream passes the gradient on as it is.
  if (config_.norm_before_residual) {
    ops.add(context, gradient, dhidden);
    write = Write::kOverwrite;
  }
  ops.rms_norm_backward(context, dhidden, step.hidden, hidden_norm_->value, step.hidden_rms, write,
                        gradient, hidden_norm_->gradient);
}

}  // namespace percheron
