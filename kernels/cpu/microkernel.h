#pragma once

// The inner loop of every product: a strip of rows times a panel of columns, kept in registers.
// Only for sources compiled once per instruction set.

#include "kernels/cpu/vec.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

/// Columns of a panel: two registers.
constexpr int kPanel = 2 * kLanes;
/// Rows of a full strip: with a panel's columns they fill the registers (16, or 32 with AVX-512).
constexpr int kStrip = kLanes == 16 ? 12 : 6;

/// Calls f(row, count) with count a compile-time constant (count.value), for strips that cover
/// `rows`.
template <int Value>
struct Count {
  static constexpr int value = Value;
};
template <class F>
PERCHERON_INLINE void for_strips(int64_t rows, F&& f) {
  int64_t row = 0;
  for (; row + kStrip <= rows; row += kStrip) f(row, Count<kStrip>{});
  if constexpr (kStrip > 8) {
    if (row + 8 <= rows) {
      f(row, Count<8>{});
      row += 8;
    }
  }
  if (row + 4 <= rows) {
    f(row, Count<4>{});
    row += 4;
  }
  if (row + 2 <= rows) {
    f(row, Count<2>{});
    row += 2;
  }
  if (row < rows) f(row, Count<1>{});
}

/// As for_strips(), for few rows: strips of any height up to 8.
template <class F>
PERCHERON_INLINE void for_small_strips(int64_t rows, F&& f) {
  for (int64_t row = 0; row < rows; row += 8) {
    switch (rows - row) {
      case 1: f(row, Count<1>{}); break;
      case 2: f(row, Count<2>{}); break;
      case 3: f(row, Count<3>{}); break;
      case 4: f(row, Count<4>{}); break;
      case 5: f(row, Count<5>{}); break;
      case 6: f(row, Count<6>{}); break;
      case 7: f(row, Count<7>{}); break;
      default: f(row, Count<8>{});
    }
  }
}

/// A strip of `Rows` rows and `Panels` panels.
template <int Rows, int Panels = 1>
struct Block {
  Vec at[Rows][2 * Panels];

  PERCHERON_INLINE void clear() {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < 2 * Panels; ++c) at[r][c] = Vec{};
    }
  }

  PERCHERON_INLINE void load_from(const float* x, int64_t stride) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < 2 * Panels; ++c) at[r][c] = load(x + r * stride + c * kLanes, Full{});
    }
  }

  PERCHERON_INLINE void store_to(float* x, int64_t stride) const {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < 2 * Panels; ++c) store(x + r * stride + c * kLanes, at[r][c], Full{});
    }
  }

  PERCHERON_INLINE void add_to(float* x, int64_t stride) const {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < 2 * Panels; ++c) {
        float* p = x + r * stride + c * kLanes;
        store(p, load(p, Full{}) + at[r][c], Full{});
      }
    }
  }

  /// at[r][c] += sum over i < depth of a[r * a_row + i * a_step] b[c / 2 * b_panel + i * kPanel +
  /// ...]. Each element is one chain of multiply-adds in the order of i, whatever the strip's
  /// height: its bits do not depend on how rows are grouped.
  template <class B>
  PERCHERON_INLINE void multiply(const float* a, int64_t a_row, int64_t a_step, const B* b,
                                 int64_t b_panel, int64_t depth) {
    for (int64_t i = 0; i < depth; ++i) {
      Vec column[2 * Panels];
#pragma GCC unroll 8
      for (int c = 0; c < 2 * Panels; ++c) {
        column[c] = load(b + c / 2 * b_panel + c % 2 * kLanes, Full{});
      }
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const Vec factor = splat(a[r * a_row]);
#pragma GCC unroll 8
        for (int c = 0; c < 2 * Panels; ++c) at[r][c] += factor * column[c];
      }
      a += a_step;
      b += kPanel;
    }
  }
};

}  // namespace
}  // namespace percheron::cpu::PERCHERON_ISA
