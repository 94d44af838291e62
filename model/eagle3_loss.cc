// The loss stage of EAGLE-3: chunks of teacher rows, each used by all steps, so
// that neither teacher nor draft logits of the whole micro-batch exist at once
// (Automodel#2428, SpecForge#466).

#include <algorithm>

#include "model/drafter_inputs.h"
#include "model/eagle3.h"

namespace percheron {

/// Fills the teacher logits of the chunk's rows: given, or final norm and head
/// over the last layer's output.
void Eagle3Drafter::teach(Context& context, const Inputs& in, const Unrolled& run,
                          Chunk& chunk) const {
  const int64_t count = chunk.end - chunk.begin;
  const TensorView wanted = in.teacher_rows.rows(chunk.begin, chunk.end);
  chunk.teacher_logits = context.arena.take(DType::kF32, {count, config_.draft_vocab_size});
  if (!in.teacher_logits.present()) {
    teacher_logits(context, target_, *teacher_head_, run.last, wanted, dtype_,
                   chunk.teacher_logits);
    return;
  }
  context.device.ops().gather_rows(context, in.teacher_logits, wanted, chunk.teacher_logits);
}

/// One step's losses on a chunk, and the gradients of head, norm and the step's
/// output.
void Eagle3Drafter::learn_step(Context& context, const Inputs& in, const LossConfig& loss,
                               const Chunk& chunk, int64_t k, Unrolled& run,
                               const Results& results) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const Arena::Scope scope(arena);
  const int64_t count = chunk.end - chunk.begin, hidden = config_.body.hidden_size;
  const auto of_chunk = [&](const TensorView& x, int64_t row) {
    return x.rows(row, row + 1).reshaped({in.teachers}).rows(chunk.begin, chunk.end);
  };
  const TensorView query_rows = of_chunk(in.learning_rows, k);
  const TensorView outputs = arena.take(DType::kF32, {count, hidden});
  const TensorView normed = arena.take(dtype_, {count, hidden});
  const TensorView inverse_rms = arena.take(DType::kF32, {count});
  const TensorView source = config_.norm_output ? run.fed[k] : run.steps[k].out;
  ops.gather_rows(context, source, query_rows, outputs);
  if (config_.norm_output) {
    ops.copy(context, outputs, normed);
  } else {
    ops.rms_norm(context, outputs, norm_->value, epsilon_, normed, inverse_rms);
  }
  const TensorView dnormed = arena.take(dtype_, {count, hidden});
  Write write = Write::kOverwrite;
  for (const LossTerm& term : loss_terms(loss)) {
    learn_term(context, term, chunk, normed, of_chunk(in.weights, k), of_chunk(results.argmax, k),
               of_chunk(results.teacher_argmax, 0), of_chunk(results.loss, k), write, dnormed);
    write = Write::kAdd;
  }
  if (config_.norm_output) {
    ops.scatter_add_rows(context, dnormed, query_rows, run.gradients[k]);
    return;
  }
  const TensorView doutputs = arena.take(DType::kF32, {count, hidden});
  ops.rms_norm_backward(context, dnormed, outputs, norm_->value, inverse_rms, Write::kOverwrite,
                        doutputs, norm_->gradient);
  ops.scatter_add_rows(context, doutputs, query_rows, run.gradients[k]);
}

/// One term of the loss: adds its value to `loss` and (by `write`) its gradient
/// to `dnormed`.
void Eagle3Drafter::learn_term(Context& context, const LossTerm& term, const Chunk& chunk,
                               ConstTensorView normed, ConstTensorView weights, TensorView argmax,
                               TensorView teacher_argmax, TensorView loss, Write write,
                               TensorView dnormed) const {
  const Ops& ops = context.device.ops();
  const Arena::Scope scope(context.arena);
  const int64_t count = chunk.end - chunk.begin;
  const float factor = static_cast<float>(term.factor);
  const TensorView scaled = context.arena.take(DType::kF32, {count});
  const TensorView value = context.arena.take(DType::kF32, {count});
  ops.fill_zero(context, scaled);
  ops.axpby(context, factor, weights, 1.0f, scaled);
  const TensorView logits = context.arena.take(DType::kF32, {count, config_.draft_vocab_size});
  head_proj_->forward(context, normed, Write::kOverwrite, logits);
  ops.teacher_loss(context, term.kind, logits, chunk.teacher_logits, scaled, Gradient::kInPlace,
                   value, argmax, teacher_argmax);
  ops.axpby(context, factor, value, 1.0f, loss);
  head_proj_->backward(context, logits, normed, write, dnormed);
}

void Eagle3Drafter::learn(Context& context, const Inputs& in, const LossConfig& loss, Unrolled& run,
                          const Results& results) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t all = in.teachers;
  ops.fill_zero(context, results.loss);
  for (int64_t k = 0; k < in.steps; ++k) {
    run.gradients.push_back(arena.take(DType::kF32, {in.queries, config_.body.hidden_size}));
    ops.fill_zero(context, run.gradients.back());
  }
  const int64_t chunk_rows = loss_chunk_rows(loss, config_.draft_vocab_size);
  for (int64_t begin = 0; begin < all; begin += chunk_rows) {
    const Arena::Scope scope(arena);
    Chunk chunk{begin, std::min(all, begin + chunk_rows), TensorView()};
    teach(context, in, run, chunk);
    for (int64_t k = 0; k < in.steps; ++k) {
      learn_step(context, in, loss, chunk, k, run, results);
    }
  }
}

Result<Eagle3Outcome> Eagle3Drafter::read_back(Context& context, const Results& results) const {
  Eagle3Outcome outcome;
  download(context, results.loss, outcome.loss);
  download(context, results.argmax, outcome.argmax);
  download(context, results.teacher_argmax, outcome.teacher_argmax);
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  return outcome;
}

}  // namespace percheron
