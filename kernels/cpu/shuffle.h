#pragma once

// Moving elements between lanes. Only for sources compiled once per instruction set.

#include "kernels/cpu/vec.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

/// Swaps the off-diagonal Step x Step blocks of rows a and b.
template <int Step, int... I>
PERCHERON_INLINE void swap_blocks(Vec& a, Vec& b, std::integer_sequence<int, I...>) {
  const Vec low = __builtin_shuffle(a, b, IntVec{((I & Step) != 0 ? kLanes + I - Step : I)...});
  b = __builtin_shuffle(a, b, IntVec{((I & Step) != 0 ? kLanes + I : I + Step)...});
  a = low;
}

/// Transposes a square of registers.
template <int Step = kLanes / 2>
PERCHERON_INLINE void transpose(Vec (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & Step) == 0) swap_blocks<Step>(rows[i], rows[i + Step], LaneSequence{});
  }
  if constexpr (Step > 1) transpose<Step / 2>(rows);
}

/// Lane i of the result is the sum of the lanes of rows[i].
PERCHERON_INLINE Vec sum_of_each(Vec (&rows)[kLanes]) {
  transpose(rows);
#pragma GCC unroll 16
  for (int step = kLanes / 2; step > 0; step /= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < step; ++i) rows[i] += rows[i + step];
  }
  return rows[0];
}

}  // namespace
}  // namespace percheron::cpu::PERCHERON_ISA
