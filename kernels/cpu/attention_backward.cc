// Attention with interval masks, backward, in two passes that each write what only one task owns:
// the gradients of queries by tiles of query rows, then those of keys and values by tiles of keys.
// The probabilities are computed again from the kept logarithm of their sum. Source: Dao et al.
// 2022.

#include <omp.h>

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/isa_kernels.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

/// Keys of a key tile: a few panels, so that widening a row of queries serves them all.
constexpr int64_t kGradientPanels = 4;
constexpr int64_t kGradientKeys = kGradientPanels * kPanel;
/// Query rows of one head that are taken at a time.
constexpr int64_t kRowBlock = kTileRowsMax;

/// The logarithm of a row's sum in powers of two. A row that sees nothing has none: its keys are
/// all masked, so that any number will do.
PERCHERON_INLINE float log2_sum(float log_sum_exp) {
  return log_sum_exp < -3e38f ? 0.f : log_sum_exp * kLog2E;
}

// --- Gradients of queries ------------------------------------------------------------------------

/// What a thread holds of a tile of query rows. Panels are [d, kPanel].
struct QueryState {
  float *q, *dout, *dq;    // [panels, d, kPanel]
  float *log_sum, *delta;  // [lanes]
  float* ds;               // [kKeyTile, kPanel]
  float *k, *v;            // [kKeyTile, d], for keys that are not f32
  int32_t* end;            // [lanes]

  QueryState(float* scratch, int64_t d) {
    const int64_t stride = (d + kLanes - 1) / kLanes * kLanes;
    Pieces pieces(scratch);
    q = pieces.take(kTileLanesMax * stride);
    dout = pieces.take(kTileLanesMax * stride);
    dq = pieces.take(kTileLanesMax * stride);
    log_sum = pieces.take(kTileLanesMax);
    delta = pieces.take(kTileLanesMax);
    ds = pieces.take(kKeyTile * kPanel);
    k = pieces.take(kKeyTile * stride);
    v = pieces.take(kKeyTile * stride);
    end = reinterpret_cast<int32_t*>(pieces.take(kTileLanesMax));
  }
};

/// Adds what `count` keys from `key` on give to a panel's dq.
void add_key_tile(const QueryState& t, int64_t panel, const F32Rows& k, const F32Rows& v, int64_t d,
                  int64_t key, int64_t count) {
  const float* q = t.q + panel * kPanel * d;
  const float* dout = t.dout + panel * kPanel * d;
  float* dq = t.dq + panel * kPanel * d;
  Vec log_sum[2], delta[2];
  IntVec end[2];
  for (int c = 0; c < 2; ++c) {
    log_sum[c] = load(t.log_sum + panel * kPanel + c * kLanes, Full{});
    delta[c] = load(t.delta + panel * kPanel + c * kLanes, Full{});
    __builtin_memcpy(&end[c], t.end + panel * kPanel + c * kLanes, sizeof end[c]);
  }
  for_strips(count, [&](int64_t i, auto rows) {
    Block<rows.value> scores, dp;
    scores.clear();
    scores.multiply(k.data + i * k.stride, k.stride, 1, q, 0, d);
    // Probabilities wait in memory: both blocks together are more than the registers.
#pragma GCC unroll 16
    for (int r = 0; r < rows.value; ++r) {
      const int32_t here = static_cast<int32_t>(key + i + r);
#pragma GCC unroll 2
      for (int c = 0; c < 2; ++c) {
        const Vec p = exp2(scores.at[r][c] - log_sum[c]);
        scores.at[r][c] = end[c] > here ? p : splat(0.f);
      }
    }
    scores.store_to(t.ds + i * kPanel, kPanel);
    dp.clear();
    dp.multiply(v.data + i * v.stride, v.stride, 1, dout, 0, d);
#pragma GCC unroll 16
    for (int r = 0; r < rows.value; ++r) {
#pragma GCC unroll 2
      for (int c = 0; c < 2; ++c) {
        float* ds = t.ds + (i + r) * kPanel + c * kLanes;
        store(ds, load(ds, Full{}) * (dp.at[r][c] - delta[c]), Full{});
      }
    }
  });
  for_strips(d, [&](int64_t i, auto rows) {
    Block<rows.value> block;
    block.load_from(dq + i * kPanel, kPanel);
    block.multiply(k.data + i, 1, k.stride, t.ds, 0, count);
    block.store_to(dq + i * kPanel, kPanel);
  });
}

template <class K>
void add_intervals(const AttentionBackward& a, const TileLanes& lanes, int64_t kv_head, int part,
                   Interval keys, const QueryState& t) {
  for (int64_t lane = 0; lane < lanes.panels() * kPanel; ++lane) {
    const bool present = lane < lanes.lanes;
    t.end[lane] = present ? interval_of(a.intervals, lanes.row(lane), part).end : 0;
  }
  for (int64_t key = keys.begin; key < keys.end; key += kKeyTile) {
    const int64_t count = smaller(kKeyTile, keys.end - key);
    const F32Rows k = f32_rows<K>(a.k, key, count, kv_head, t.k);
    const F32Rows v = f32_rows<K>(a.v, key, count, kv_head, t.v);
    for (int64_t panel = 0; panel < lanes.panels(); ++panel) {
      int32_t highest = 0;
      for (int i = 0; i < kPanel; ++i) highest = larger(highest, t.end[panel * kPanel + i]);
      const int64_t seen = smaller(count, highest - key);
      if (seen > 0) add_key_tile(t, panel, k, v, a.q.columns, key, seen);
    }
  }
}

/// Adds to dq what a row's keys in `keys` give, one key at a time.
template <class Q, class K>
void add_keys_of_row(const AttentionBackward& a, int64_t row, int64_t head, int64_t kv_head,
                     Interval keys, float log_sum, float delta, float* dq) {
  const int64_t d = a.q.columns;
  alignas(64) float q[kHeadDimMax], dout[kHeadDimMax];
  load_row(row_of<Q>(a.q, row, head), d, a.scale * kLog2E, q);
  load_row(row_of<Q>(a.dout, row, head), d, 1.f, dout);
  for (int64_t key = keys.begin; key < keys.end; ++key) {
    const K* k = row_of<K>(a.k, key, kv_head);
    const float p = exp2(splat(dot(q, k, d) - log_sum))[0];
    const float ds = p * (dot(dout, row_of<K>(a.v, key, kv_head), d) - delta);
    add_scaled(&ds, k, 0, 1, d, dq);
  }
}

template <class Q, class K, class D>
void query_gradients(const AttentionBackward& a, const RowTile& tile, int64_t kv_head,
                     float* scratch) {
  const int64_t d = a.q.columns, stride = (d + kLanes - 1) / kLanes * kLanes;
  const TileLanes lanes(tile, kv_head, a.q.heads / a.k.heads);
  const QueryState t(scratch, d);
  transpose_in<Q>(a.q, lanes, a.scale * kLog2E, t.q);
  transpose_in<Q>(a.dout, lanes, 1.f, t.dout);
  __builtin_memset(t.dq, 0, static_cast<size_t>(lanes.panels() * kPanel * d) * sizeof(float));
  for (int64_t lane = 0; lane < lanes.panels() * kPanel; ++lane) {
    t.log_sum[lane] = t.delta[lane] = 0;
    if (lane >= lanes.lanes) continue;
    const int64_t row = lanes.row(lane), head = lanes.head(lane), at = row * a.q.heads + head;
    const Q* dout = row_of<Q>(a.dout, row, head);
    const Q* out = row_of<Q>(a.out, row, head);
    Vec sum = {};
    for_lanes(d,
              [&](int64_t i, auto width) { sum += load(dout + i, width) * load(out + i, width); });
    t.log_sum[lane] = log2_sum(a.log_sum_exp[at]);
    t.delta[lane] = a.delta[at] = sum_lanes(sum);
  }
  add_intervals<K>(a, lanes, kv_head, 0, {tile.first_begin, tile.first_end}, t);
  if (tile.second_shared) {
    add_intervals<K>(a, lanes, kv_head, 1, {tile.second_begin, tile.second_end}, t);
  }
  transpose_out(t.dq, lanes.panels(), d, t.q);
  for (int64_t lane = 0; lane < lanes.lanes; ++lane) {
    const int64_t row = lanes.row(lane), head = lanes.head(lane);
    float* dq = t.q + lane * stride;
    if (!tile.second_shared) {
      add_keys_of_row<Q, K>(a, row, head, kv_head, interval_of(a.intervals, row, 1),
                            t.log_sum[lane], t.delta[lane], dq);
    }
    D* target = row_of<D>(a.dq, row, head);
    for_lanes(
        d, [&](int64_t i, auto width) { store(target + i, load(dq + i, width) * a.scale, width); });
  }
}

// --- Gradients of keys and values ----------------------------------------------------------------

/// What a thread holds of a tile of keys. Panels are [d, kPanel].
struct KeyState {
  float *k, *v, *dk, *dv;  // [kGradientPanels, d, kPanel]
  float *p, *ds;           // [kRowBlock, kPanel]
  float *q, *dout;         // [kRowBlock, d], for rows that are not f32

  KeyState(float* scratch, int64_t d) {
    const int64_t stride = (d + kLanes - 1) / kLanes * kLanes;
    Pieces pieces(scratch);
    for (float** panels : {&k, &v, &dk, &dv}) *panels = pieces.take(kGradientKeys * stride);
    p = pieces.take(kRowBlock * kPanel);
    ds = pieces.take(kRowBlock * kPanel);
    q = pieces.take(kRowBlock * stride);
    dout = pieces.take(kRowBlock * stride);
  }
};

/// Whether a row's intervals meet, or cover, a panel's keys.
struct Sight {
  bool some, all;
};
PERCHERON_INLINE Sight sight_of(const int32_t* intervals, int64_t row, int64_t begin, int64_t end) {
  const Interval a = interval_of(intervals, row, 0), b = interval_of(intervals, row, 1);
  const bool some = (a.begin < end && begin < a.end) || (b.begin < end && begin < b.end);
  const bool all = (a.begin <= begin && end <= a.end) || (b.begin <= begin && end <= b.end);
  return {some, all};
}

/// Ones in the lanes of the panel from `key` on that the row sees.
PERCHERON_INLINE IntVec seen_lanes(const int32_t* intervals, int64_t row, int64_t key) {
  IntVec here = {};
  for (int i = 0; i < kLanes; ++i) here[i] = i;
  here += static_cast<int32_t>(key);
  const Interval a = interval_of(intervals, row, 0), b = interval_of(intervals, row, 1);
  return ((here >= a.begin) & (here < a.end)) | ((here >= b.begin) & (here < b.end));
}

/// A block of rows of one head.
struct RowBlock {
  int64_t row, count, head;
  F32Rows q, dout;
};

/// p and ds of a strip of rows against a panel of keys from `key` on.
template <int Rows>
PERCHERON_INLINE void strip_terms(const AttentionBackward& a, const RowBlock& rows, int64_t i,
                                  int64_t key, bool masked, const float* k, const float* v,
                                  const KeyState& t) {
  const int64_t d = a.q.columns;
  Block<Rows> block;
  block.clear();
  block.multiply(rows.q.data + i * rows.q.stride, rows.q.stride, 1, k, 0, d);
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    const int64_t row = rows.row + i + r;
    const float log_sum = log2_sum(a.log_sum_exp[row * a.q.heads + rows.head]);
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      Vec p = exp2(block.at[r][c] * (a.scale * kLog2E) - log_sum);
      if (masked) p = seen_lanes(a.intervals, row, key + c * kLanes) != 0 ? p : splat(0.f);
      store(t.p + (i + r) * kPanel + c * kLanes, p, Full{});
    }
  }
  block.clear();
  block.multiply(rows.dout.data + i * rows.dout.stride, rows.dout.stride, 1, v, 0, d);
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    const float delta = a.delta[(rows.row + i + r) * a.q.heads + rows.head];
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      const int64_t at = (i + r) * kPanel + c * kLanes;
      const Vec p = load(t.p + at, Full{});
      // Not p times the rest: a masked key's value may be no number.
      store(t.ds + at, p == 0.f ? splat(0.f) : p * (block.at[r][c] - delta), Full{});
    }
  }
}

/// Adds what a block of rows gives to a panel of keys from `key` on.
void add_row_block(const AttentionBackward& a, const RowBlock& rows, int64_t key, int64_t panel,
                   const KeyState& t) {
  const int64_t d = a.q.columns, offset = panel * kPanel * d;
  int64_t first = rows.count, last = 0;  // the rows that see something lie between
  for_strips(rows.count, [&](int64_t i, auto strip) {
    bool some = false, all = true;
    for (int r = 0; r < strip.value; ++r) {
      const Sight sight = sight_of(a.intervals, rows.row + i + r, key, key + kPanel);
      some |= sight.some;
      all &= sight.all;
    }
    if (some) {
      strip_terms<strip.value>(a, rows, i, key, !all, t.k + offset, t.v + offset, t);
      first = smaller(first, i);
      last = i + strip.value;
    } else {
      for (int64_t j = i * kPanel; j < (i + strip.value) * kPanel; ++j) t.p[j] = t.ds[j] = 0;
    }
  });
  if (first >= last) return;
  const auto add = [&](const F32Rows& x, const float* factors, float* sums) {
    for_strips(d, [&](int64_t i, auto strip) {
      Block<strip.value> block;
      block.load_from(sums + offset + i * kPanel, kPanel);
      block.multiply(x.data + first * x.stride + i, 1, x.stride, factors + first * kPanel, 0,
                     last - first);
      block.store_to(sums + offset + i * kPanel, kPanel);
    });
  };
  add(rows.dout, t.p, t.dv);
  add(rows.q, t.ds, t.dk);
}

/// Adds the sums of a key tile, [panel, d, kPanel], to the rows of the gradient.
void add_to_rows(const float* sums, float factor, int64_t begin, int64_t count, int64_t kv_head,
                 const Rows& out, float* scratch) {
  const int64_t stride = (out.columns + kLanes - 1) / kLanes * kLanes;
  transpose_out(sums, (count + kPanel - 1) / kPanel, out.columns, scratch);
  for (int64_t i = 0; i < count; ++i) {
    float* row = row_of<float>(out, begin + i, kv_head);
    for_lanes(out.columns, [&](int64_t c, auto width) {
      store(row + c, load(row + c, width) + load(scratch + i * stride + c, width) * factor, width);
    });
  }
}

template <class Q, class K>
void key_gradients(const AttentionBackward& a, int64_t tiles, int64_t begin, int64_t kv_head,
                   float* scratch) {
  const int64_t d = a.q.columns, group = a.q.heads / a.k.heads;
  const int64_t count = smaller(kGradientKeys, a.k.rows - begin), end = begin + count;
  const int64_t panels = (count + kPanel - 1) / kPanel;
  const KeyState t(scratch, d);
  bool started = false;
  for (int64_t index = 0; index < tiles; ++index) {
    const RowTile& tile = a.tiles[index];
    const bool first = tile.first_begin < end && begin < tile.first_end;
    const bool second = tile.second_begin < end && begin < tile.second_end;
    if (!first && !second) continue;
    if (!started) {
      // Keys are the lanes of a "tile" with one head.
      RowTile keys{};
      keys.begin = static_cast<int32_t>(begin);
      keys.end = static_cast<int32_t>(end);
      transpose_in<K>(a.k, TileLanes(keys, kv_head, 1), 1.f, t.k);
      transpose_in<K>(a.v, TileLanes(keys, kv_head, 1), 1.f, t.v);
      const size_t bytes = static_cast<size_t>(panels * kPanel * d) * sizeof(float);
      __builtin_memset(t.dk, 0, bytes);
      __builtin_memset(t.dv, 0, bytes);
      started = true;
    }
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const int64_t rows = tile.end - tile.begin;
      const RowBlock block{tile.begin, rows, head, f32_rows<Q>(a.q, tile.begin, rows, head, t.q),
                           f32_rows<Q>(a.dout, tile.begin, rows, head, t.dout)};
      for (int64_t panel = 0; panel < panels; ++panel) {
        add_row_block(a, block, begin + panel * kPanel, panel, t);
      }
    }
  }
  if (!started) return;
  add_to_rows(t.dk, a.scale, begin, count, kv_head, a.dk, t.k);
  add_to_rows(t.dv, 1.f, begin, count, kv_head, a.dv, t.k);
}

}  // namespace

int64_t attention_backward_scratch_floats(const AttentionShape& shape) {
  const int64_t stride = (shape.head_dim + 15) / 16 * 16;
  const int64_t queries =
      3 * kTileLanesMax * stride + 3 * kTileLanesMax + kKeyTile * kPanel + 2 * kKeyTile * stride;
  const int64_t keys = 4 * kGradientKeys * stride + 2 * kRowBlock * kPanel + 2 * kRowBlock * stride;
  return larger(queries, keys);
}

void attention_backward(const AttentionBackward& a) {
  const int64_t group = a.q.heads / a.k.heads, kv_heads = a.k.heads;
  const int64_t tiles = plan_tiles(a.intervals, a.q.rows, group, a.tiles);
  const int64_t scratch_floats =
      attention_backward_scratch_floats({a.q.heads, a.k.heads, a.q.columns});
  const int64_t key_tiles = (a.k.rows + kGradientKeys - 1) / kGradientKeys;
  with_activation(a.q.dtype, [&](auto* q_type) {
    with_activation(a.k.dtype, [&](auto* k_type) {
      with_activation(a.dq.dtype, [&](auto* dq_type) {
        using Q = Pointee<decltype(q_type)>;
        using K = Pointee<decltype(k_type)>;
        using D = Pointee<decltype(dq_type)>;
#pragma omp parallel
        {
          float* scratch = a.scratch + omp_get_thread_num() * scratch_floats;
          // The longest tasks go first: late rows, early keys.
#pragma omp for schedule(dynamic, 1)
          for (int64_t task = tiles * kv_heads - 1; task >= 0; --task) {
            query_gradients<Q, K, D>(a, a.tiles[task / kv_heads], task % kv_heads, scratch);
          }
#pragma omp for schedule(dynamic, 1)
          for (int64_t task = 0; task < key_tiles * kv_heads; ++task) {
            key_gradients<Q, K>(a, tiles, task / kv_heads * kGradientKeys, task % kv_heads,
                                scratch);
          }
        }
      });
    });
  });
}

}  // namespace percheron::cpu::PERCHERON_ISA
