#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/ops.h"

namespace percheron {

/// Rows whose logits choose_greedily() holds at once.
constexpr int64_t kLogitRows = 256;

/// choice[r] = the index of the largest logit of row r, the lowest on a tie, without ever holding
/// the logits of all rows. `logits_of(begin, end, logits)` writes those of rows [begin, end),
/// [end - begin, vocabulary] f32; what it takes from the arena is given back. choice: I32 [rows].
template <class F>
void choose_greedily(Context& context, int64_t rows, int64_t vocabulary, TensorView choice,
                     F&& logits_of) {
  for (int64_t begin = 0; begin < rows; begin += kLogitRows) {
    const Arena::Scope scope(context.arena);
    const int64_t end = std::min(rows, begin + kLogitRows);
    const TensorView logits = context.arena.take(DType::kF32, {end - begin, vocabulary});
    logits_of(begin, end, logits);
    context.device.ops().argmax(context, logits, choice.rows(begin, end));
  }
}

}  // namespace percheron
