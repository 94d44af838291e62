#pragma once

// Attention of single query rows, vectorised over the head's dimensions: for decoding, where few
// rows read many keys. Only for sources compiled once per instruction set.

#include "kernels/cpu/vec.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

constexpr int kHeadDimMax = 256;
constexpr float kLog2E = 1.44269504f;

template <class X>
PERCHERON_INLINE void load_row(const X* x, int64_t n, float factor, float* out) {
  for_lanes(n, [&](int64_t i, auto width) { store(out + i, load(x + i, width) * factor, width); });
}

template <class K>
PERCHERON_INLINE float dot(const float* a, const K* b, int64_t n) {
  Vec sum[2] = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    sum[0] += load(a + i, Full{}) * load(b + i, Full{});
    sum[1] += load(a + i + kLanes, Full{}) * load(b + i + kLanes, Full{});
  }
  for_lanes(n - i, [&](int64_t j, auto width) {
    sum[0] += load(a + i + j, width) * load(b + i + j, width);
  });
  return sum_lanes(sum[0] + sum[1]);
}

template <class K>
PERCHERON_INLINE void add_scaled(float factor, const K* x, int64_t n, float* y) {
  for_lanes(n, [&](int64_t i, auto width) {
    store(y + i, load(y + i, width) + load(x + i, width) * factor, width);
  });
}

/// Row `row` of the query heads that share key head `kv_head`. Keys are taken in blocks counted
/// from their interval's begin, so a row's bits depend on its own keys only.
template <class Q, class K, class O>
void attention_row(const Attention& a, int64_t row, int64_t kv_head) {
  constexpr int kBlock = 32;
  const int64_t d = a.q.columns, group = a.q.heads / a.k.heads;
  const int32_t* interval = a.intervals + row * 4;
  for (int64_t g = 0; g < group; ++g) {
    const int64_t head = kv_head * group + g;
    alignas(64) float q[kHeadDimMax], out[kHeadDimMax] = {};
    alignas(64) float score[kBlock];
    load_row(row_of<Q>(a.q, row, head), d, a.scale, q);
    float largest = -__builtin_inff(), sum = 0;
    for (int part = 0; part < 2; ++part) {
      const int64_t end = interval[2 * part + 1];
      for (int64_t begin = interval[2 * part]; begin < end; begin += kBlock) {
        const int n = static_cast<int>(smaller<int64_t>(kBlock, end - begin));
        float block_largest = largest;
        for (int i = 0; i < n; ++i) {
          score[i] = dot(q, row_of<K>(a.k, begin + i, kv_head), d);
          block_largest = larger(block_largest, score[i]);
        }
        const float rescale = exp(splat(largest - block_largest))[0];
        largest = block_largest;
        if (rescale != 1.f) load_row(out, d, rescale, out);
        Vec total = {};
        for_lanes(n, [&](int64_t i, auto width) {
          const Vec p = fill_after(exp(load(score + i, width) - largest), width, 0.f);
          total += p;
          store(score + i, p, width);
        });
        sum = sum * rescale + sum_lanes(total);
        for (int i = 0; i < n; ++i)
          add_scaled(score[i], row_of<K>(a.v, begin + i, kv_head), d, out);
      }
    }
    load_row(out, d, sum > 0 ? 1 / sum : 0.f, out);
    O* target = row_of<O>(a.out, row, head);
    for_lanes(d, [&](int64_t i, auto width) { store(target + i, load(out + i, width), width); });
    if (a.log_sum_exp != nullptr) {
      a.log_sum_exp[row * a.q.heads + head] =
          largest + static_cast<float>(__builtin_log(static_cast<double>(sum)));
    }
  }
}

}  // namespace
}  // namespace percheron::cpu::PERCHERON_ISA
