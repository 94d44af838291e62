// Attention with interval masks, backward.

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

constexpr int64_t kKeyTile = 32;

/// The probability of a key and the gradient of its scaled score.
struct KeyTerm {
  float p, ds;
};
template <class K>
KeyTerm key_term(const AttentionBackward& a, const float* q, const float* dout, float log_sum_exp,
                 float delta, int64_t key, int64_t kv_head) {
  const int64_t d = a.q.columns;
  const float score = dot(q, row_of<K>(a.k, key, kv_head), d) * a.scale;
  const float p = exp(splat(score - log_sum_exp))[0];
  return {p, p * (dot(dout, row_of<K>(a.v, key, kv_head), d) - delta) * a.scale};
}

template <class Q, class K>
void query_gradient(const AttentionBackward& a, int64_t row, int64_t head) {
  const int64_t d = a.q.columns, kv_head = head / (a.q.heads / a.k.heads);
  alignas(64) float q[kHeadDimMax], dout[kHeadDimMax], dq[kHeadDimMax] = {};
  load_row(row_of<Q>(a.q, row, head), d, 1.f, q);
  load_row(row_of<Q>(a.dout, row, head), d, 1.f, dout);
  const float delta = dot(dout, row_of<Q>(a.out, row, head), d);
  a.delta[row * a.q.heads + head] = delta;
  const float log_sum_exp = a.log_sum_exp[row * a.q.heads + head];
  const int32_t* interval = a.intervals + row * 4;
  for (int part = 0; part < 2; ++part) {
    for (int64_t key = interval[2 * part]; key < interval[2 * part + 1]; ++key) {
      const KeyTerm term = key_term<K>(a, q, dout, log_sum_exp, delta, key, kv_head);
      add_scaled(term.ds, row_of<K>(a.k, key, kv_head), d, dq);
    }
  }
  with_activation(a.dq.dtype, [&](auto* type) {
    auto* out = row_of<Pointee<decltype(type)>>(a.dq, row, head);
    for_lanes(d, [&](int64_t i, auto width) { store(out + i, load(dq + i, width), width); });
  });
}

template <class Q, class K>
void key_gradients(const AttentionBackward& a, int64_t tile, int64_t kv_head) {
  const int64_t d = a.q.columns, group = a.q.heads / a.k.heads;
  const int64_t tile_begin = tile * kKeyTile;
  const int64_t tile_end = smaller(a.k.rows, tile_begin + kKeyTile);
  for (int64_t row = 0; row < a.q.rows; ++row) {
    const int32_t* interval = a.intervals + row * 4;
    for (int part = 0; part < 2; ++part) {
      const int64_t begin = larger<int64_t>(tile_begin, interval[2 * part]);
      const int64_t end = smaller<int64_t>(tile_end, interval[2 * part + 1]);
      if (begin >= end) continue;
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        alignas(64) float q[kHeadDimMax], dout[kHeadDimMax];
        load_row(row_of<Q>(a.q, row, head), d, 1.f, q);
        load_row(row_of<Q>(a.dout, row, head), d, 1.f, dout);
        for (int64_t key = begin; key < end; ++key) {
          const KeyTerm term = key_term<K>(a, q, dout, a.log_sum_exp[row * a.q.heads + head],
                                           a.delta[row * a.q.heads + head], key, kv_head);
          add_scaled(term.ds, q, d, row_of<float>(a.dk, key, kv_head));
          add_scaled(term.p, dout, d, row_of<float>(a.dv, key, kv_head));
        }
      }
    }
  }
}

}  // namespace

void attention_backward(const AttentionBackward& a) {
  with_activation(a.q.dtype, [&](auto* q_type) {
    with_activation(a.k.dtype, [&](auto* k_type) {
      using Q = Pointee<decltype(q_type)>;
      using K = Pointee<decltype(k_type)>;
      const int64_t row_tasks = a.q.rows * a.q.heads;
#pragma omp parallel for schedule(dynamic, 8)
      for (int64_t task = 0; task < row_tasks; ++task) {
        query_gradient<Q, K>(a, task / a.q.heads, task % a.q.heads);
      }
      const int64_t tiles = (a.k.rows + kKeyTile - 1) / kKeyTile;
#pragma omp parallel for schedule(dynamic, 1)
      for (int64_t task = 0; task < tiles * a.k.heads; ++task) {
        key_gradients<Q, K>(a, task / a.k.heads, task % a.k.heads);
      }
    });
  });
}

}  // namespace percheron::cpu::PERCHERON_ISA
