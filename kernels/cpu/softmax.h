#pragma once

// Passes over one row of logits that the losses are made of. Only for sources compiled once per
// instruction set.

#include "kernels/cpu/vec.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

struct Largest {
  float value;
  int32_t index;
};

/// The largest element and its index, the lowest on a tie.
inline Largest largest_of(const float* x, int64_t n) {
  Vec value = splat(-__builtin_inff());
  IntVec index = {}, lane = {};
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  for_lanes(n, [&](int64_t i, auto width) {
    const Vec v = fill_after(load(x + i, width), width, -__builtin_inff());
    const IntVec here = lane + static_cast<int32_t>(i);
    index = v > value ? here : index;
    value = v > value ? v : value;
  });
  Largest best{value[0], index[0]};
  for (int i = 1; i < kLanes; ++i) {
    if (value[i] > best.value || (value[i] == best.value && index[i] < best.index)) {
      best = {value[i], index[i]};
    }
  }
  return best;
}

/// Sums up to `Count` values per element in f32 over short runs, which are added in f64.
template <int Count>
struct Sums {
  double total[Count] = {};
};

/// f(i, width, sums) adds to the vectors sums[0..Count); lanes past the end must add zero.
template <int Count, class F>
Sums<Count> sum_elements(int64_t n, F&& f) {
  constexpr int64_t kRun = 2048;
  Sums<Count> sums;
  for (int64_t begin = 0; begin < n; begin += kRun) {
    Vec run[Count] = {};
    for_lanes(smaller(kRun, n - begin), [&](int64_t i, auto width) { f(begin + i, width, run); });
    for (int k = 0; k < Count; ++k) {
      for (int i = 0; i < kLanes; ++i) sums.total[k] += static_cast<double>(run[k][i]);
    }
  }
  return sums;
}

/// A row's softmax, ready to be evaluated at any element.
struct Softmax {
  const float* x;
  float largest;      // subtracted first
  float inverse_sum;  // of the exponentials of what is left
  float log_sum;      // its negative logarithm's counterpart: log p = x - largest - log_sum
  int32_t argmax;

  template <class Width>
  PERCHERON_INLINE Vec log_p(int64_t i, Width width) const {
    return load(x + i, width) - largest - log_sum;
  }
  /// Zero in lanes past the end.
  template <class Width>
  PERCHERON_INLINE Vec p(int64_t i, Width width) const {
    return fill_after(exp(load(x + i, width) - largest) * inverse_sum, width, 0.f);
  }
};

inline Softmax softmax_of(const float* x, int64_t n) {
  const Largest best = largest_of(x, n);
  const double sum = sum_elements<1>(n, [&](int64_t i, auto width, Vec* sums) {
                       sums[0] += fill_after(exp(load(x + i, width) - best.value), width, 0.f);
                     }).total[0];
  return {x, best.value, static_cast<float>(1.0 / sum), static_cast<float>(__builtin_log(sum)),
          best.index};
}

}  // namespace
}  // namespace percheron::cpu::PERCHERON_ISA
