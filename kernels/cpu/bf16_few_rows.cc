// Products of few bf16 rows with a weight, as in decoding: they are bound by reading the weight, so
// that it is read once, in the order in which it lies, for up to kRowsAtOnce rows.
//
// The weight lies in panels of kColumns columns, [depth / 2, kColumns, 2]: the instruction
// multiplies pairs of bf16 along the depth and adds both products to an f32. A sum runs along the
// depth in order, whatever the number of rows.

#include <immintrin.h>

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/vec.h"

#ifndef __AVX512BF16__
#error "compile with -mavx512bf16"
#endif

namespace percheron::cpu::PERCHERON_ISA {
namespace {

constexpr int kColumns = 2 * kLanes;
constexpr int kRowsAtOnce = 8;

struct Panel {
  const char* pairs;  // [depth / 2, kColumns, 2] bf16
  int64_t depth_pairs;
};

/// tile[Rows, kColumns] = x times the panel.
template <int Rows>
PERCHERON_INLINE void multiply(const Bf16* x, int64_t x_stride, const Panel& panel, float* tile) {
  __m512 sum[Rows][2];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  const char* weight = panel.pairs;
  for (int64_t i = 0; i < panel.depth_pairs; ++i, weight += 2 * sizeof(__m512i)) {
    const auto w0 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weight));
    const auto w1 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weight + sizeof(__m512i)));
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const int pair = load_raw<int>(x + r * x_stride + 2 * i);
      const auto both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], both, w0);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], both, w1);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    _mm512_storeu_ps(tile + r * kColumns, sum[r][0]);
    _mm512_storeu_ps(tile + r * kColumns + kLanes, sum[r][1]);
  }
}

void multiply_rows(int64_t rows, const Bf16* x, int64_t x_stride, const Panel& panel, float* tile) {
  switch (rows) {
    case 1: return multiply<1>(x, x_stride, panel, tile);
    case 2: return multiply<2>(x, x_stride, panel, tile);
    case 3: return multiply<3>(x, x_stride, panel, tile);
    case 4: return multiply<4>(x, x_stride, panel, tile);
    case 5: return multiply<5>(x, x_stride, panel, tile);
    case 6: return multiply<6>(x, x_stride, panel, tile);
    case 7: return multiply<7>(x, x_stride, panel, tile);
    default: return multiply<kRowsAtOnce>(x, x_stride, panel, tile);
  }
}

/// y (+)= tile + bias, for the columns that exist.
template <class Y>
void write_rows(const Product& a, const float* tile, int64_t row, int64_t rows, int64_t column) {
  const int64_t columns = smaller<int64_t>(kColumns, a.y.columns - column);
  for (int64_t r = 0; r < rows; ++r) {
    Y* out = row_of<Y>(a.y, row + r) + column;
    for_lanes(columns, [&](int64_t i, auto width) {
      Vec v = load(tile + r * kColumns + i, width);
      if (a.bias != nullptr) v += load(a.bias + column + i, width);
      if (a.write == Write::kAdd) v += load(out + i, width);
      store(out + i, v, width);
    });
  }
}

}  // namespace

int64_t bf16_pairs_bytes(int64_t columns, int64_t depth) {
  return (columns + kColumns - 1) / kColumns * kColumns * depth *
         static_cast<int64_t>(sizeof(Bf16));
}

void pack_bf16_pairs(const ConstRows& weight, void* pairs) {
  const int64_t depth_pairs = weight.columns / 2;
  const int64_t panels = (weight.rows + kColumns - 1) / kColumns;
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < panels; ++p) {
    uint32_t* out = static_cast<uint32_t*>(pairs) + p * depth_pairs * kColumns;
    const Bf16* source[kColumns];
    for (int64_t j = 0; j < kColumns; ++j) {
      const int64_t column = p * kColumns + j;
      source[j] = column < weight.rows ? row_of<Bf16>(weight, column) : nullptr;
    }
    for (int64_t i = 0; i < depth_pairs; ++i, out += kColumns) {
      for (int64_t j = 0; j < kColumns; ++j) {
        out[j] = source[j] == nullptr ? 0 : load_raw<uint32_t>(source[j] + 2 * i);
      }
    }
  }
}

void few_bf16_rows_product(const Product& a) {
  const int64_t depth_pairs = a.x.columns / 2;
  const int64_t panels = (a.y.columns + kColumns - 1) / kColumns;
  const char* pairs = static_cast<const char*>(a.panels);
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < panels; ++p) {
    alignas(64) float tile[kRowsAtOnce * kColumns];
    const int64_t panel_bytes = depth_pairs * kColumns * 2 * static_cast<int64_t>(sizeof(Bf16));
    const Panel panel{pairs + p * panel_bytes, depth_pairs};
    for (int64_t row = 0; row < a.x.rows; row += kRowsAtOnce) {
      const int64_t rows = smaller<int64_t>(kRowsAtOnce, a.x.rows - row);
      multiply_rows(rows, row_of<Bf16>(a.x, row), a.x.row_stride, panel, tile);
      with_activation(a.y.dtype, [&](auto* type) {
        write_rows<Pointee<decltype(type)>>(a, tile, row, rows, p * kColumns);
      });
    }
  }
}

}  // namespace percheron::cpu::PERCHERON_ISA
