// Drafting with an EAGLE-3 drafter: the same layer as in training, nothing kept for a backward
// pass.

#include <algorithm>

#include "model/eagle3.h"

namespace percheron {
namespace {

// Rows whose logits are held at once.
constexpr int64_t kLogitRows = 256;

}  // namespace

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
  for (int64_t begin = 0; begin < fed.dim(0); begin += kLogitRows) {
    const Arena::Scope scope(context.arena);
    const int64_t end = std::min(fed.dim(0), begin + kLogitRows);
    const TensorView normed = context.arena.take(dtype_, {end - begin, config_.body.hidden_size});
    const TensorView logits =
        context.arena.take(DType::kF32, {end - begin, config_.draft_vocab_size});
    if (config_.norm_output) {
      ops.copy(context, fed.rows(begin, end), normed);
    } else {
      ops.rms_norm(context, fed.rows(begin, end), norm_->value, epsilon_, normed, TensorView());
    }
    head_proj_->forward(context, normed, Write::kOverwrite, logits);
    ops.argmax(context, logits, choice.rows(begin, end));
  }
}

}  // namespace percheron
