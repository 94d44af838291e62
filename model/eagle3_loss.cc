// The loss stage of EAGLE-3: chunks of teacher rows, each used by all steps, so
// that neither teacher nor draft logits of the whole micro-batch exist at once
// (Automodel#2428, SpecForge#466).

#include <algorithm>

#include "model/drafter_inputs.h"
#include "model/eagle3.h"

namespace percheron {

/// Fills the teacher logits of the chunk's rows: given, or final norm and head
/// over the last layer's output.
void Eagle3Drafter::teach(Context& context, const Eagle3Rows& rows, const Unrolled& run,
                          Chunk& chunk) const {
  const int64_t count = chunk.end - chunk.begin;
  const std::span<const int32_t> wanted(rows.teacher_rows.data() + chunk.begin,
                                        static_cast<size_t>(count));
  chunk.teacher_logits = context.arena.take(DType::kF32, {count, config_.draft_vocab_size});
  if (!run.teacher_logits.present()) {
    teacher_logits(context, target_, *teacher_head_, run.last, wanted, dtype_,
                   chunk.teacher_logits);
    return;
  }
  const Arena::Scope scope(context.arena);
  context.device.ops().gather_rows(context, run.teacher_logits, upload(context, wanted, {count}),
                                   chunk.teacher_logits);
}

/// One step's losses on a chunk, and the gradients of head, norm and the step's
/// output.
void Eagle3Drafter::learn_step(Context& context, const Eagle3Rows& rows, const LossConfig& loss,
                               const Chunk& chunk, int64_t k, Unrolled& run,
                               Results& results) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const Arena::Scope scope(arena);
  const int64_t count = chunk.end - chunk.begin, hidden = config_.body.hidden_size;
  const int64_t all = static_cast<int64_t>(rows.teacher_rows.size());
  const size_t first = static_cast<size_t>(k * all + chunk.begin), n = static_cast<size_t>(count);
  const TensorView query_rows =
      upload(context, std::span<const int32_t>(rows.query_rows).subspan(first, n), {count});
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
  const TensorView weights =
      upload(context, std::span<const float>(rows.weights).subspan(first, n), {count});
  const auto of_chunk = [&](const TensorView& x, int64_t row) {
    return x.rows(row, row + 1).reshaped({all}).rows(chunk.begin, chunk.end);
  };
  Write write = Write::kOverwrite;
  for (const LossTerm& term : loss_terms(loss)) {
    learn_term(context, term, chunk, normed, weights, of_chunk(results.argmax, k),
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

Eagle3Drafter::Results Eagle3Drafter::learn(Context& context, const Eagle3Rows& rows,
                                            const LossConfig& loss, Unrolled& run) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t all = static_cast<int64_t>(rows.teacher_rows.size());
  Results results;
  results.loss = arena.take(DType::kF32, {rows.steps, all});
  results.argmax = arena.take(DType::kI32, {rows.steps, all});
  results.teacher_argmax = arena.take(DType::kI32, {1, all});
  ops.fill_zero(context, results.loss);
  for (int64_t k = 0; k < rows.steps; ++k) {
    run.gradients.push_back(arena.take(
        DType::kF32, {static_cast<int64_t>(rows.queries.size()), config_.body.hidden_size}));
    ops.fill_zero(context, run.gradients.back());
  }
  const int64_t chunk_rows = loss_chunk_rows(loss, config_.draft_vocab_size);
  for (int64_t begin = 0; begin < all; begin += chunk_rows) {
    const Arena::Scope scope(arena);
    Chunk chunk{begin, std::min(all, begin + chunk_rows), TensorView()};
    teach(context, rows, run, chunk);
    for (int64_t k = 0; k < rows.steps; ++k) {
      learn_step(context, rows, loss, chunk, k, run, results);
    }
  }
  return results;
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
