// Attention with interval masks, forward: tiles of query rows run through their keys once, with the
// softmax corrected as larger scores come. Source: Dao et al. 2022; Milakov and Gimelshein 2018.
//
// Queries lie across the lanes: the scores of a panel are [key, lane], so that the largest score,
// the sum and the mask are taken lane by lane, and keys and values are read where they are.

#include <omp.h>

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/isa_kernels.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

/// What a thread holds of a tile. Panels are [d, kPanel].
struct TileState {
  float* q;        // [panels, d, kPanel]; afterwards the rows of `out`
  float* out;      // [panels, d, kPanel]
  float* largest;  // [lanes]
  float* sum;      // [lanes]
  float* scores;   // [kKeyTile, kPanel]
  float* k;        // [kKeyTile, d], for keys that are not f32
  float* v;
  int32_t* end;  // [lanes]: where the interval ends that is being taken

  TileState(float* scratch, int64_t d) {
    const int64_t stride = (d + kLanes - 1) / kLanes * kLanes;
    Pieces pieces(scratch);
    q = pieces.take(kTileLanesMax * stride);
    out = pieces.take(kTileLanesMax * stride);
    largest = pieces.take(kTileLanesMax);
    sum = pieces.take(kTileLanesMax);
    scores = pieces.take(kKeyTile * kPanel);
    k = pieces.take(kKeyTile * stride);
    v = pieces.take(kKeyTile * stride);
    end = reinterpret_cast<int32_t*>(pieces.take(kTileLanesMax));
  }
};

/// The lowest and highest end of a panel's lanes.
struct Ends {
  int32_t lowest, highest;
};
PERCHERON_INLINE Ends ends_of(const int32_t* end) {
  Ends ends{end[0], end[0]};
  for (int i = 1; i < kPanel; ++i) {
    ends.lowest = smaller(ends.lowest, end[i]);
    ends.highest = larger(ends.highest, end[i]);
  }
  return ends;
}

/// scores[key][lane] for `count` keys from `key` on, -infinity where masked; raises `top`.
PERCHERON_INLINE void score_keys(const F32Rows& k, const float* q, int64_t d, int64_t key,
                                 int64_t count, const int32_t* end, bool masked, float* scores,
                                 Vec (&top)[2]) {
  IntVec lane_end[2];
  __builtin_memcpy(lane_end, end, sizeof lane_end);
  for_strips(count, [&](int64_t i, auto rows) {
    Block<rows.value> block;
    block.clear();
    block.multiply(k.data + i * k.stride, k.stride, 1, q, 0, d);
#pragma GCC unroll 16
    for (int r = 0; r < rows.value; ++r) {
#pragma GCC unroll 2
      for (int c = 0; c < 2; ++c) {
        if (masked) {
          const int32_t here = static_cast<int32_t>(key + i + r);
          block.at[r][c] = lane_end[c] > here ? block.at[r][c] : splat(-__builtin_inff());
        }
        top[c] = max(top[c], block.at[r][c]);
      }
    }
    block.store_to(scores + i * kPanel, kPanel);
  });
}

/// Lets a panel see `count` keys from `key` on.
void see_key_tile(TileState& t, int64_t panel, const F32Rows& k, const F32Rows& v, int64_t d,
                  int64_t key, int64_t count, bool masked) {
  float* largest = t.largest + panel * kPanel;
  float* sum = t.sum + panel * kPanel;
  float* out = t.out + panel * kPanel * d;
  const Vec old[2] = {load(largest, Full{}), load(largest + kLanes, Full{})};
  Vec top[2] = {old[0], old[1]};
  score_keys(k, t.q + panel * kPanel * d, d, key, count, t.end + panel * kPanel, masked, t.scores,
             top);
  Vec base[2], rescale[2], total[2];
  bool raised = false;
  for (int c = 0; c < 2; ++c) {
    // A lane that has seen nothing yet subtracts zero: infinity less infinity is no number.
    base[c] = top[c] < -3e38f ? splat(0.f) : top[c];
    rescale[c] = exp2(old[c] - base[c]);
    total[c] = load(sum + c * kLanes, Full{}) * rescale[c];
    const IntVec changed = top[c] > old[c];
    for (int i = 0; i < kLanes; ++i) raised |= changed[i] != 0;
    store(largest + c * kLanes, top[c], Full{});
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int c = 0; c < 2; ++c) {
      float* score = t.scores + i * kPanel + c * kLanes;
      const Vec p = exp2(load(score, Full{}) - base[c]);
      total[c] += p;
      store(score, p, Full{});
    }
  }
  for (int c = 0; c < 2; ++c) store(sum + c * kLanes, total[c], Full{});
  if (raised) {
    for (int64_t i = 0; i < d; ++i) {
      for (int c = 0; c < 2; ++c) {
        float* o = out + i * kPanel + c * kLanes;
        store(o, load(o, Full{}) * rescale[c], Full{});
      }
    }
  }
  for_strips(d, [&](int64_t i, auto rows) {
    Block<rows.value> block;
    block.load_from(out + i * kPanel, kPanel);
    block.multiply(v.data + i, 1, v.stride, t.scores, 0, count);
    block.store_to(out + i * kPanel, kPanel);
  });
}

/// Lets a tile see the keys of its part-th intervals, which begin at the same key.
template <class K>
void see_intervals(const Attention& a, const TileLanes& lanes, int64_t kv_head, int part,
                   Interval keys, TileState& t) {
  const int64_t d = a.q.columns;
  for (int64_t lane = 0; lane < lanes.panels() * kPanel; ++lane) {
    const int64_t known = smaller(lane, lanes.lanes - 1);
    t.end[lane] = interval_of(a.intervals, lanes.row(known), part).end;
  }
  for (int64_t key = keys.begin; key < keys.end; key += kKeyTile) {
    const int64_t count = smaller(kKeyTile, keys.end - key);
    const F32Rows k = f32_rows<K>(a.k, key, count, kv_head, t.k);
    const F32Rows v = f32_rows<K>(a.v, key, count, kv_head, t.v);
    for (int64_t panel = 0; panel < lanes.panels(); ++panel) {
      const Ends ends = ends_of(t.end + panel * kPanel);
      const int64_t seen = smaller(count, ends.highest - key);
      if (seen <= 0) continue;
      see_key_tile(t, panel, k, v, d, key, seen, ends.lowest < key + seen);
    }
  }
}

template <class Q, class K, class O>
void attend_tile(const Attention& a, const RowTile& tile, int64_t kv_head, float* scratch) {
  const int64_t d = a.q.columns, stride = (d + kLanes - 1) / kLanes * kLanes;
  const TileLanes lanes(tile, kv_head, a.q.heads / a.k.heads);
  TileState t(scratch, d);
  transpose_in<Q>(a.q, lanes, a.scale * kLog2E, t.q);
  for (int64_t i = 0; i < lanes.panels() * kPanel; ++i) {
    t.largest[i] = -__builtin_inff();
    t.sum[i] = 0;
  }
  __builtin_memset(t.out, 0, static_cast<size_t>(lanes.panels() * kPanel * d) * sizeof(float));
  see_intervals<K>(a, lanes, kv_head, 0, {tile.first_begin, tile.first_end}, t);
  if (tile.second_shared) {
    see_intervals<K>(a, lanes, kv_head, 1, {tile.second_begin, tile.second_end}, t);
  }
  transpose_out(t.out, lanes.panels(), d, t.q);
  for (int64_t lane = 0; lane < lanes.lanes; ++lane) {
    const int64_t row = lanes.row(lane), head = lanes.head(lane);
    RowState state{t.largest[lane], t.sum[lane]};
    float* out = t.q + lane * stride;
    if (!tile.second_shared) {
      alignas(64) float q[kHeadDimMax];
      load_row(row_of<Q>(a.q, row, head), d, a.scale * kLog2E, q);
      see_keys<K>(a, q, 1, kv_head, interval_of(a.intervals, row, 1), &state, out);
    }
    finish_row<O>(a, row, head, state, out);
  }
}

/// A tile row by row.
template <class Q, class K, class O>
void attend_rows(const Attention& a, const RowTile& tile, int64_t kv_head) {
  const int64_t d = a.q.columns, group = a.q.heads / a.k.heads;
  for (int64_t row = tile.begin; row < tile.end; ++row) {
    for (int64_t first = 0; first < group; first += kRowHeadsMax) {
      const int64_t heads = smaller<int64_t>(kRowHeadsMax, group - first);
      alignas(64) float q[kRowHeadsMax * kHeadDimMax], out[kRowHeadsMax * kHeadDimMax];
      RowState states[kRowHeadsMax];
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t head = kv_head * group + first + h;
        load_row(row_of<Q>(a.q, row, head), d, a.scale * kLog2E, q + h * kHeadDimMax);
        __builtin_memset(out + h * kHeadDimMax, 0, static_cast<size_t>(d) * sizeof(float));
      }
      for (int part = 0; part < 2; ++part) {
        see_keys<K>(a, q, heads, kv_head, interval_of(a.intervals, row, part), states, out);
      }
      for (int64_t h = 0; h < heads; ++h) {
        finish_row<O>(a, row, kv_head * group + first + h, states[h], out + h * kHeadDimMax);
      }
    }
  }
}

/// Whether a tile is taken row by row: where its panels would be mostly empty, and where it is a
/// whole short document. A row's sums are then taken in the same order whether it is decoded alone
/// or verified among the drafts before and after it.
bool is_taken_by_rows(const Attention& a, const RowTile& tile) {
  const int64_t rows = tile.end - tile.begin, group = a.q.heads / a.k.heads;
  if (rows * group <= kRowLanesMax) return true;
  if (rows > kDecodeRowsMax || tile.second_end > 0) return false;
  return tile.begin == 0 || interval_of(a.intervals, tile.begin - 1, 0).begin != tile.first_begin;
}

}  // namespace

int64_t attention_scratch_floats(const AttentionShape& shape) {
  const int64_t stride = (shape.head_dim + 15) / 16 * 16;
  return 2 * kTileLanesMax * stride + 3 * kTileLanesMax + kKeyTile * (kPanel + 2 * stride);
}

void attention(const Attention& a) {
  const int64_t group = a.q.heads / a.k.heads;
  const int64_t tiles = plan_tiles(a.intervals, a.q.rows, group, a.tiles);
  const int64_t scratch_floats = attention_scratch_floats({a.q.heads, a.k.heads, a.q.columns});
  with_activation(a.q.dtype, [&](auto* q_type) {
    with_activation(a.k.dtype, [&](auto* k_type) {
      with_activation(a.out.dtype, [&](auto* out_type) {
        using Q = Pointee<decltype(q_type)>;
        using K = Pointee<decltype(k_type)>;
        using O = Pointee<decltype(out_type)>;
        // Later tiles see more keys: they go first, and which thread takes one changes no bit.
#pragma omp parallel for schedule(dynamic, 1)
        for (int64_t task = tiles * a.k.heads - 1; task >= 0; --task) {
          const RowTile& tile = a.tiles[task / a.k.heads];
          const int64_t kv_head = task % a.k.heads;
          if (is_taken_by_rows(a, tile)) {
            attend_rows<Q, K, O>(a, tile, kv_head);
          } else {
            attend_tile<Q, K, O>(a, tile, kv_head,
                                 a.scratch + omp_get_thread_num() * scratch_floats);
          }
        }
      });
    });
  });
}

}  // namespace percheron::cpu::PERCHERON_ISA
