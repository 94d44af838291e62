#pragma once

// Attention of single query rows, vectorised over the head's dimensions: for decoding, where few
// rows read many keys, and for the few keys that belong to one row only. Only for sources compiled
// once per instruction set.

#include "kernels/cpu/attention_tiles.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

constexpr int kHeadDimMax = 256;
/// Up to this many lanes a tile is taken row by row: a panel would be mostly empty.
constexpr int kRowLanesMax = kLanes / 2;
/// Up to this many rows of a document are taken row by row, as decoding one row is.
constexpr int kDecodeRowsMax = 16;
/// Query heads of one key head that read its keys together.
constexpr int kRowHeadsMax = 8;

/// A row's softmax so far, in powers of two: out is not divided by `sum` yet.
struct RowState {
  float largest = -__builtin_inff();
  float sum = 0;
};

template <class X>
PERCHERON_INLINE void load_row(const X* x, int64_t n, float factor, float* out) {
  for_lanes(n, [&](int64_t i, auto width) { store(out + i, load(x + i, width) * factor, width); });
}

template <class K>
PERCHERON_INLINE Vec lane_products(const float* a, const K* b, int64_t n) {
  Vec sum = {};
  for_lanes(n, [&](int64_t i, auto width) { sum += load(a + i, width) * load(b + i, width); });
  return sum;
}

/// Lane i is a . b[i], for i < count <= kLanes.
template <class K>
PERCHERON_INLINE Vec dots(const float* a, const K* b, int64_t stride, int count, int64_t n) {
  Vec sums[kLanes] = {};
  if (count == kLanes) {
    for_lanes(n, [&](int64_t c, auto width) {
      const Vec x = load(a + c, width);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) sums[i] += x * load(b + i * stride + c, width);
    });
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i < count) sums[i] = lane_products(a, b + i * stride, n);
    }
  }
  return sum_of_each(sums);
}

template <class K>
PERCHERON_INLINE float dot(const float* a, const K* b, int64_t n) {
  return sum_lanes(lane_products(a, b, n));
}

/// y += sum of factor[i] x[i] over i < count.
template <class K>
PERCHERON_INLINE void add_scaled(const float* factor, const K* x, int64_t stride, int count,
                                 int64_t n, float* y) {
  constexpr int kAtOnce = 4;
  int64_t c = 0;
  for (; c + kAtOnce * kLanes <= n; c += kAtOnce * kLanes) {
    Vec sum[kAtOnce];
    for (int j = 0; j < kAtOnce; ++j) sum[j] = load(y + c + j * kLanes, Full{});
    for (int i = 0; i < count; ++i) {
      const Vec f = splat(factor[i]);
      for (int j = 0; j < kAtOnce; ++j) {
        sum[j] += f * load(x + i * stride + c + j * kLanes, Full{});
      }
    }
    for (int j = 0; j < kAtOnce; ++j) store(y + c + j * kLanes, sum[j], Full{});
  }
  for_lanes(n - c, [&](int64_t j, auto width) {
    Vec sum = load(y + c + j, width);
    for (int i = 0; i < count; ++i) sum += splat(factor[i]) * load(x + i * stride + c + j, width);
    store(y + c + j, sum, width);
  });
}

constexpr int kRowKeys = 4 * kLanes;

/// Asks for the rows that come next: a head's part of a wide row is too short for the processor to
/// see the pattern.
template <class K>
PERCHERON_INLINE void prefetch_rows(const K* x, int64_t stride, int64_t count, int64_t n) {
  constexpr int64_t kLineElements = 64 / sizeof(K);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < n; c += kLineElements) __builtin_prefetch(x + i * stride + c);
  }
}

/// Lets a row see `n` <= kRowKeys keys from `begin` on. q: scaled to powers of two.
template <class K>
void see_row_keys(const Attention& a, const float* q, int64_t kv_head, int64_t begin, int n,
                  RowState& state, float* out) {
  const int64_t d = a.q.columns;
  alignas(64) float score[kRowKeys];
  const K* k = row_of<K>(a.k, begin, kv_head);
  Vec top = splat(state.largest);
  for (int i = 0; i < n; i += kLanes) {
    const int count = smaller(kLanes, n - i);
    Vec s = dots(q, k + i * a.k.row_stride, a.k.row_stride, count, d);
    if (count < kLanes) s = fill_after(s, Part{count}, -__builtin_inff());
    top = max(top, s);
    store(score + i, s, Full{});
  }
  const float largest = max_lanes(top);
  if (largest > state.largest) {
    const float rescale = exp2(splat(state.largest - largest))[0];
    state.largest = largest;
    state.sum *= rescale;
    load_row(out, d, rescale, out);
  }
  Vec total = {};
  for (int i = 0; i < n; i += kLanes) {
    const Vec p = exp2(load(score + i, Full{}) - state.largest);
    total += p;
    store(score + i, p, Full{});
  }
  state.sum += sum_lanes(total);
  add_scaled(score, row_of<K>(a.v, begin, kv_head), a.v.row_stride, n, d, out);
}

/// Lets `heads` rows, q and out with the stride kHeadDimMax, see `keys`, in blocks counted from
/// their begin. The rows take a block one after the other, while it is in the cache.
template <class K>
void see_keys(const Attention& a, const float* q, int64_t heads, int64_t kv_head, Interval keys,
              RowState* states, float* out) {
  for (int64_t begin = keys.begin; begin < keys.end; begin += kRowKeys) {
    const int n = static_cast<int>(smaller<int64_t>(kRowKeys, keys.end - begin));
    const int64_t next = smaller<int64_t>(kRowKeys, keys.end - begin - n);
    prefetch_rows(row_of<K>(a.k, begin + n, kv_head), a.k.row_stride, next, a.q.columns);
    prefetch_rows(row_of<K>(a.v, begin + n, kv_head), a.v.row_stride, next, a.q.columns);
    for (int64_t h = 0; h < heads; ++h) {
      see_row_keys<K>(a, q + h * kHeadDimMax, kv_head, begin, n, states[h], out + h * kHeadDimMax);
    }
  }
}

/// Writes a finished row: out divided by the sum, and the logarithm of the sum.
template <class O>
void finish_row(const Attention& a, int64_t row, int64_t head, const RowState& state,
                const float* out) {
  const float inverse = state.sum > 0 ? 1 / state.sum : 0.f;
  O* target = row_of<O>(a.out, row, head);
  for_lanes(a.q.columns, [&](int64_t i, auto width) {
    store(target + i, load(out + i, width) * inverse, width);
  });
  if (a.log_sum_exp != nullptr) {
    const double sum = static_cast<double>(state.sum);
    a.log_sum_exp[row * a.q.heads + head] =
        state.sum > 0 ? static_cast<float>(state.largest * kLn2 + __builtin_log(sum))
                      : -__builtin_inff();
  }
}

}  // namespace
}  // namespace percheron::cpu::PERCHERON_ISA
