#pragma once

// How element-wise kernels share their work among the calling thread's OpenMP team. Only for
// sources compiled once per instruction set.

#include "kernels/cpu/vec.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

/// Below this many elements a team costs more than it saves.
constexpr int64_t kParallelElementsMin = 1 << 14;
/// Long rows are cut into pieces of this size, so that one row is shared too.
constexpr int64_t kChunkColumns = 4096;

/// Calls f(row, head, column, count) for pieces that together cover all elements once.
template <class F>
void for_chunks(int64_t rows, int64_t heads, int64_t columns, F&& f) {
  const int64_t chunks = (columns + kChunkColumns - 1) / kChunkColumns;
  const int64_t pieces = rows * heads * chunks;
#pragma omp parallel for schedule(static) if (rows * heads * columns >= kParallelElementsMin)
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t row = piece / chunks, column = piece % chunks * kChunkColumns;
    f(row / heads, row % heads, column, smaller(kChunkColumns, columns - column));
  }
}

/// Calls f(row) for every row; `elements` is the work in all.
template <class F>
void for_rows(int64_t rows, int64_t elements, F&& f) {
#pragma omp parallel for schedule(static) if (elements >= kParallelElementsMin)
  for (int64_t row = 0; row < rows; ++row) f(row);
}

/// The fixed blocks of rows over which sums are taken.
struct RowBlocks {
  int64_t rows, block_rows, count;
};
inline RowBlocks row_blocks(int64_t rows) {
  const int64_t block_rows = larger<int64_t>(32, (rows + kRowBlocksMax - 1) / kRowBlocksMax);
  return {rows, block_rows, (rows + block_rows - 1) / block_rows};
}

/// sum[c] += partial[0][c] + partial[1][c] + ..., in this order.
inline void add_partials(const float* partial, int64_t blocks, int64_t columns, float* sum) {
  for_chunks(1, 1, columns, [&](int64_t, int64_t, int64_t column, int64_t n) {
    for_lanes(n, [&](int64_t i, auto width) {
      Vec total = {};
      for (int64_t b = 0; b < blocks; ++b) total += load(partial + b * columns + column + i, width);
      float* out = sum + column + i;
      store(out, load(out, width) + total, width);
    });
  });
}

}  // namespace
}  // namespace percheron::cpu::PERCHERON_ISA
