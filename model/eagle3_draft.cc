// Drafting with an EAGLE-3 drafter: the same layer as in training, nothing kept for a backward
// pass.

#include "model/eagle3.h"
#include "model/greedy_choice.h"

namespace percheron {

void Eagle3Drafter::fuse_states(Context& context, ConstTensorView states, TensorView hidden) const {
  const Arena::Scope scope(context.arena);
  Fused fused;
  fuse(context, states, fused);
  context.device.ops().copy(context, fused.hidden, hidden);
}

void Eagle3Drafter::draft_step(Context& context, const DraftRows& rows, TensorView fed) const {
  const Arena::Scope scope(context.arena);
  KeysValues kv;
  kv.keys = rows.keys;
  kv.values = rows.values;
  Step step;
  step.input_ids = rows.input_ids;
  step.positions = rows.positions;
  step.query_rows = rows.query_rows;
  step.query_positions = rows.query_positions;
  step.intervals = rows.intervals;
  step.hidden = rows.hidden;
  step.own_keys = rows.own_keys;
  step.own_values = rows.own_values;
  layer_->forward(context, target_.embedding, rope_, kv, step);
  const Ops& ops = context.device.ops();
  if (config_.norm_output) {
    ops.rms_norm(context, step.out, norm_->value, epsilon_, fed, TensorView());
  } else {
    ops.copy(context, step.out, fed);
  }
}

void Eagle3Drafter::choose(Context& context, ConstTensorView fed, TensorView choice) const {
  const Ops& ops = context.device.ops();
  const auto logits_of = [&](int64_t begin, int64_t end, TensorView logits) {
    const TensorView normed = context.arena.take(dtype_, {end - begin, config_.body.hidden_size});
    if (config_.norm_output) {
      ops.copy(context, fed.rows(begin, end), normed);
    } else {
      ops.rms_norm(context, fed.rows(begin, end), norm_->value, epsilon_, normed, TensorView());
    }
    head_proj_->forward(context, normed, Write::kOverwrite, logits);
  };
  choose_greedily(context, fed.dim(0), config_.draft_vocab_size, choice, logits_of);
}

}  // namespace percheron
