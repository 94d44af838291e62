// Drafting with a DFlash drafter: context rows leave keys and values behind, blocks leave nothing.

#include "model/dflash.h"
#include "model/greedy_choice.h"

namespace percheron {

void DflashLayer::append(Context& context, const RopeTable& rope, ConstTensorView rows,
                         ConstTensorView positions, TensorView keys, TensorView values) const {
  const Ops& ops = context.device.ops();
  const Arena::Scope scope(context.arena);
  const int64_t columns = kv_heads_ * head_dim_;
  const TensorView kv = context.arena.take(dtype_, {rows.dim(0), 2 * columns});
  kv_proj_->forward(context, rows, Write::kOverwrite, kv);
  if (qk_norm_) {
    ops.rms_norm(context, kv.columns(0, columns).heads(head_dim_), k_norm_->value, epsilon_,
                 keys.heads(head_dim_), TensorView());
  } else {
    ops.copy(context, kv.columns(0, columns), keys);
  }
  ops.rotary(context, keys.heads(head_dim_), positions, rope.cos(), rope.sin(),
             RotaryDirection::kForward);
  ops.copy(context, kv.columns(columns, 2 * columns), values);
}

void DflashLayer::draft(Context& context, const RopeTable& rope, const CachedRows& rows,
                        TensorView x) const {
  const Ops& ops = context.device.ops();
  const Arena::Scope scope(context.arena);
  Arena& arena = context.arena;
  const int64_t count = x.dim(0), queries = heads_ * head_dim_;
  const TensorView normed = arena.take(dtype_, {count, hidden_});
  ops.rms_norm(context, x, input_norm_->value, epsilon_, normed, TensorView());
  append(context, rope, normed, rows.positions, rows.own_keys, rows.own_values);
  const TensorView q = arena.take(dtype_, {count, queries});
  q_proj_->forward(context, normed, Write::kOverwrite, q);
  const TensorView heads = q.heads(head_dim_);
  if (qk_norm_) ops.rms_norm(context, heads, q_norm_->value, epsilon_, heads, TensorView());
  ops.rotary(context, heads, rows.positions, rope.cos(), rope.sin(), RotaryDirection::kForward);
  const TensorView attended = arena.take(dtype_, {count, queries});
  ops.attention(context, heads, rows.keys.heads(head_dim_), rows.values.heads(head_dim_),
                rows.intervals, scale_, attended.heads(head_dim_), TensorView());
  o_proj_->forward(context, attended, Write::kAdd, x);
  MlpBlock::Saved saved;
  const TensorView residual = arena.take(DType::kF32, {count, hidden_});
  ops.copy(context, x, residual);
  mlp_->forward(context, residual, saved, x);
}

void DflashDrafter::fuse_states(Context& context, ConstTensorView states, TensorView fused) const {
  const Arena::Scope scope(context.arena);
  Run run;
  fuse(context, states, run);
  context.device.ops().copy(context, run.shared.context, fused);
}

void DflashDrafter::embed(Context& context, ConstTensorView ids, TensorView x) const {
  context.device.ops().gather_rows(context, target_.embedding, ids, x);
}

void DflashDrafter::choose(Context& context, ConstTensorView x, TensorView choice) const {
  const Ops& ops = context.device.ops();
  const auto logits_of = [&](int64_t begin, int64_t end, TensorView logits) {
    const TensorView normed = context.arena.take(dtype_, {end - begin, config_.body.hidden_size});
    ops.rms_norm(context, x.rows(begin, end), norm_->value, epsilon_, normed, TensorView());
    head_->forward(context, normed, logits);
  };
  choose_greedily(context, x.dim(0), config_.draft_vocab_size, choice, logits_of);
}

}  // namespace percheron
