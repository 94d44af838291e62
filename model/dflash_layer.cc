#include "model/dflash_layer.h"

#include <fmt/format.h>

#include <cmath>

namespace percheron {

DflashLayer::DflashLayer(Context& context, const DrafterConfig& config, int64_t index,
                         ParameterList& list)
    : hidden_(config.body.hidden_size),
      heads_(config.body.num_attention_heads),
      kv_heads_(config.body.num_key_value_heads),
      head_dim_(config.body.head_dim),
      qk_norm_(config.body.qk_norm),
      epsilon_(static_cast<float>(config.body.rms_norm_eps)),
      scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.body.head_dim)))) {
  const std::string name = fmt::format("layers.{}.", index);
  const int64_t queries = heads_ * head_dim_, keys = kv_heads_ * head_dim_;
  const int64_t inner = config.body.intermediate_size;
  input_norm_ = list.add(context, name + "input_layernorm.weight", {hidden_});
  q_ = list.add(context, name + "self_attn.q_proj.weight", {queries, hidden_});
  k_ = list.add(context, name + "self_attn.k_proj.weight", {keys, hidden_});
  v_ = list.add(context, name + "self_attn.v_proj.weight", {keys, hidden_});
  o_ = list.add(context, name + "self_attn.o_proj.weight", {hidden_, queries});
  if (qk_norm_) {
    q_norm_ = list.add(context, name + "self_attn.q_norm.weight", {head_dim_});
    k_norm_ = list.add(context, name + "self_attn.k_norm.weight", {head_dim_});
  }
  post_norm_ = list.add(context, name + "post_attention_layernorm.weight", {hidden_});
  gate_ = list.add(context, name + "mlp.gate_proj.weight", {inner, hidden_});
  up_ = list.add(context, name + "mlp.up_proj.weight", {inner, hidden_});
  down_ = list.add(context, name + "mlp.down_proj.weight", {hidden_, inner});
}

void DflashLayer::build(Context& context, DType dtype) {
  dtype_ = activation_dtype(context.device, dtype);
  q_proj_ = std::make_unique<Linear>(context, std::vector<Parameter*>{q_}, dtype,
                                     Products::kForwardAndBackward);
  kv_proj_ = std::make_unique<Linear>(context, std::vector<Parameter*>{k_, v_}, dtype,
                                      Products::kForwardAndBackward);
  o_proj_ = std::make_unique<Linear>(context, std::vector<Parameter*>{o_}, dtype,
                                     Products::kForwardAndBackward);
  mlp_ = std::make_unique<MlpBlock>(context, post_norm_, gate_, up_, down_, epsilon_, dtype);
}

void DflashLayer::repack(Context& context) {
  q_proj_->repack(context);
  kv_proj_->repack(context);
  o_proj_->repack(context);
  mlp_->repack(context);
}

void DflashLayer::forward(Context& context, const RopeTable& rope, const Shared& shared,
                          TensorView input, Saved& saved, TensorView out) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t tokens = shared.context.dim(0), queries = input.dim(0), keys = tokens + queries;
  const int64_t kv_columns = kv_heads_ * head_dim_;
  saved.input = input;
  saved.normed = arena.take(dtype_, {queries, hidden_});
  saved.input_rms = arena.take(DType::kF32, {queries});
  ops.rms_norm(context, input, input_norm_->value, epsilon_, saved.normed, saved.input_rms);

  const TensorView q = arena.take(dtype_, {queries, heads_ * head_dim_});
  saved.q = q.heads(head_dim_);
  saved.kv = arena.take(dtype_, {keys, 2 * kv_columns});
  q_proj_->forward(context, saved.normed, Write::kOverwrite, q);
  kv_proj_->forward(context, shared.context, Write::kOverwrite, saved.kv.rows(0, tokens));
  kv_proj_->forward(context, saved.normed, Write::kOverwrite, saved.kv.rows(tokens, keys));
  const TensorView k = saved.kv.columns(0, kv_columns).heads(head_dim_);
  const TensorView v = saved.kv.columns(kv_columns, 2 * kv_columns).heads(head_dim_);
  saved.rotated_q = saved.q;
  saved.rotated_k = k;
  if (qk_norm_) {
    saved.rotated_q = arena.take(dtype_, {queries, heads_, head_dim_});
    saved.rotated_k = arena.take(dtype_, {keys, kv_heads_, head_dim_});
    saved.q_rms = arena.take(DType::kF32, {queries, heads_});
    saved.k_rms = arena.take(DType::kF32, {keys, kv_heads_});
    ops.rms_norm(context, saved.q, q_norm_->value, epsilon_, saved.rotated_q, saved.q_rms);
    ops.rms_norm(context, k, k_norm_->value, epsilon_, saved.rotated_k, saved.k_rms);
  }
  ops.rotary(context, saved.rotated_q, shared.query_positions, rope.cos(), rope.sin(),
             RotaryDirection::kForward);
  ops.rotary(context, saved.rotated_k, shared.key_positions, rope.cos(), rope.sin(),
             RotaryDirection::kForward);

  saved.attended = arena.take(dtype_, {queries, heads_ * head_dim_});
  saved.log_sum_exp = arena.take(DType::kF32, {queries, heads_});
  ops.attention(context, saved.rotated_q, saved.rotated_k, v, saved.intervals, scale_,
                saved.attended.heads(head_dim_), saved.log_sum_exp);
  const TensorView residual = arena.take(DType::kF32, {queries, hidden_});
  ops.copy(context, input, residual);
  o_proj_->forward(context, saved.attended, Write::kAdd, residual);
  mlp_->forward(context, residual, saved.mlp, out);
}

void DflashLayer::backward(Context& context, const RopeTable& rope, const Shared& shared,
                           const Saved& saved, TensorView gradient,
                           GradientListener* listener) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const Arena::Scope scope(arena);
  const int64_t tokens = shared.context.dim(0), queries = gradient.dim(0);
  const int64_t keys = tokens + queries, kv_columns = kv_heads_ * head_dim_;
  mlp_->backward(context, saved.mlp, gradient, listener);

  const ConstTensorView dresidual = converted(context, gradient, dtype_);
  const TensorView dattended = arena.take(dtype_, {queries, heads_ * head_dim_});
  o_proj_->backward(context, dresidual, saved.attended, Write::kOverwrite, dattended, listener);
  const TensorView dq_columns = arena.take(dtype_, {queries, heads_ * head_dim_});
  const TensorView dq = dq_columns.heads(head_dim_);
  const TensorView dkv = arena.take(DType::kF32, {keys, 2 * kv_columns});
  const TensorView dk = dkv.columns(0, kv_columns).heads(head_dim_);
  const TensorView dv = dkv.columns(kv_columns, 2 * kv_columns).heads(head_dim_);
  const TensorView v = saved.kv.columns(kv_columns, 2 * kv_columns).heads(head_dim_);
  ops.fill_zero(context, dkv);
  ops.attention_backward(context, dattended.heads(head_dim_), saved.rotated_q, saved.rotated_k, v,
                         saved.attended.heads(head_dim_), saved.log_sum_exp, saved.intervals,
                         scale_, dq, dk, dv);
  ops.rotary(context, dq, shared.query_positions, rope.cos(), rope.sin(),
             RotaryDirection::kBackward);
  ops.rotary(context, dk, shared.key_positions, rope.cos(), rope.sin(), RotaryDirection::kBackward);
  if (qk_norm_) {
    const TensorView k = saved.kv.columns(0, kv_columns).heads(head_dim_);
    ops.rms_norm_backward(context, dq, saved.q, q_norm_->value, saved.q_rms, Write::kOverwrite, dq,
                          q_norm_->gradient);
    ops.rms_norm_backward(context, dk, k, k_norm_->value, saved.k_rms, Write::kOverwrite, dk,
                          k_norm_->gradient);
    tell_complete(context, listener, {q_norm_, k_norm_});
  }
  const ConstTensorView dkv_rows = converted(context, dkv, dtype_);
  kv_proj_->backward(context, dkv_rows.rows(0, tokens), shared.context, Write::kAdd,
                     shared.dcontext);
  const TensorView dnormed = arena.take(dtype_, {queries, hidden_});
  q_proj_->backward(context, dq_columns, saved.normed, Write::kOverwrite, dnormed, listener);
  kv_proj_->backward(context, dkv_rows.rows(tokens, keys), saved.normed, Write::kAdd, dnormed,
                     listener);
  ops.rms_norm_backward(context, dnormed, saved.input, input_norm_->value, saved.input_rms,
                        Write::kAdd, gradient, input_norm_->gradient);
  tell_complete(context, listener, {input_norm_});
}

}  // namespace percheron
