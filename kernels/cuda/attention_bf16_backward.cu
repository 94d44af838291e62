// The gradients of attention with interval masks, for bf16 on tensor cores. Source: Dao 2023
// (FlashAttention-2), with a kernel each for the queries' and the keys' gradients: seven products
// for five, but each sum has one owner, so no atomic additions and always the same bits.
//
// The keys' gradients are sums over lanes, which tensor cores take sixteen at a time in an order of
// their own. Tiles of rows therefore begin where documents do (and at fixed multiples from there),
// so that a document's gradients do not depend on its place in the pack. A kernel of one block
// finds these tiles first, with the bounds of what their rows see: whoever works for a tile of keys
// passes over the others 128 at a time.

#include "kernels/cuda/attention_bf16_tiles.cuh"
#include "kernels/cuda/kernels.h"

namespace percheron::cuda {
namespace {

/// Rows that are worked on together and the bounds of what they see.
struct RowTile {
  int32_t first_row, rows;
  Intervals bounds;

  __device__ bool overlaps(int64_t key) const {
    return bounds.first.overlaps(key, kRows) || bounds.second.overlaps(key, kRows);
  }
};
static_assert(sizeof(RowTile) == kRowTileInts * sizeof(int32_t));

/// The row tiles in scratch memory: at[0].rows is how many there are, and they follow.
struct RowTiles {
  RowTile* at;

  __device__ int count() const { return at[0].rows; }
  __device__ const RowTile& operator[](int i) const { return at[1 + i]; }
};

constexpr int kPlanThreads = 512;
constexpr int kPlanWarps = kPlanThreads / kWarpThreads;
using WarpTotals = int32_t[kPlanWarps];

/// The combination of the values of all threads up to this one; `total` becomes that of all.
template <class Combine>
__device__ inline int32_t block_scan(WarpTotals& totals, int32_t value, Combine combine,
                                     int32_t& total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  for (int distance = 1; distance < kWarpThreads; distance *= 2) {
    const int32_t before = __shfl_up_sync(kAllLanes, value, distance);
    if (lane >= distance) value = combine(before, value);
  }
  if (lane == kWarpThreads - 1) totals[warp] = value;
  __syncthreads();
  total = totals[0];
  if (warp > 0) value = combine(totals[0], value);
  for (int w = 1; w < kPlanWarps; ++w) {
    total = combine(total, totals[w]);
    if (w < warp) value = combine(totals[w], value);
  }
  __syncthreads();  // `totals` may be written again at once.
  return value;
}

/// Whether a document seems to begin: the row sees nothing of what the row before saw, only later
/// keys. Where it errs tiles are shorter, or begin elsewhere, and nothing is wrong.
__device__ inline bool begins_run(const int32_t* intervals, int64_t row) {
  if (row == 0) return true;
  const Interval before = interval_of(intervals, row - 1, 0), here = interval_of(intervals, row, 0);
  return before.begin < before.end && here.begin < here.end && here.begin >= before.end;
}

/// The tile that begins at a row.
__device__ inline RowTile tile_from(const int32_t* intervals, int64_t first_row, int64_t rows,
                                    int rows_max) {
  RowTile tile{static_cast<int32_t>(first_row), 0, {{0, 0}, {0, 0}}};
  for (int64_t row = first_row; row < rows && tile.rows < rows_max; ++row, ++tile.rows) {
    if (row > first_row && begins_run(intervals, row)) break;
    tile.bounds.first = bounds_of(tile.bounds.first, interval_of(intervals, row, 0));
    tile.bounds.second = bounds_of(tile.bounds.second, interval_of(intervals, row, 1));
  }
  return tile;
}

__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(const int32_t* intervals, int64_t rows, int rows_max, RowTiles tiles) {
  PERCHERON_SHARED(WarpTotals, totals);
  int32_t run = 0, count = 0;  // the last run's first row; tiles so far
  for (int64_t base = 0; base < rows; base += kPlanThreads) {
    const int64_t row = base + threadIdx.x;
    int32_t my_run = row < rows && begins_run(intervals, row) ? static_cast<int32_t>(row) : run;
    my_run = block_scan(
        totals, my_run, [](int32_t a, int32_t b) { return a > b ? a : b; }, run);
    const bool begins = row < rows && (row - my_run) % rows_max == 0;
    int32_t begun = 0;
    const int32_t number = block_scan(
        totals, begins ? 1 : 0, [](int32_t a, int32_t b) { return a + b; }, begun);
    if (begins) tiles.at[count + number] = tile_from(intervals, row, rows, rows_max);
    count += begun;
  }
  if (threadIdx.x == 0) tiles.at[0] = {0, count, {{0, 0}, {0, 0}}};
}

/// The probability of a score, from the scores' logarithmic sum in powers of two.
__device__ inline float probability(float score, float scale, float log2_sum) {
  return exp2f(score * (scale * kLog2E) - log2_sum);
}

template <int D>
struct QueryGradientTiles {
  uint16_t q[TileOf<D>::kElements], dout[TileOf<D>::kElements];
  uint16_t k[2][TileOf<D>::kElements], v[2][TileOf<D>::kElements];
};

/// A thread's two lanes of a tile.
struct LanePair {
  float log2_sum[2], delta[2];
};

/// Adds what the lanes get from the keys of one segment to their gradients.
template <int D>
__device__ inline void add_segment(const AttentionBackward& a, const TileLanes& lanes,
                                   KeyWalk& walk, QueryGradientTiles<D>& tiles,
                                   const LanePair& mine, int part, WarpSums<D>& dq) {
  const Segment segment = next_segment(walk, part, lanes.rows, kAnyOrigin - 1);
  if (segment.empty()) return;
  walk_keys(
      walk, segment, part, lanes.rows,
      [&](int64_t key, int buffer) {
        const uint8_t* seen = walk.seen[buffer];
        copy_tile<D>(tiles.k[buffer], a.k, SeenKeyPlaces{a.k, seen, key, lanes.kv_head});
        copy_tile<D>(tiles.v[buffer], a.v, SeenKeyPlaces{a.v, seen, key, lanes.kv_head});
      },
      [&](int64_t key, int buffer) {
        float p[kColumnBlocks][4], ds[kColumnBlocks][4];
        multiply_scores<D>(p, tiles.q, warp_row(), tiles.k[buffer]);
        multiply_scores<D>(ds, tiles.dout, warp_row(), tiles.v[buffer]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int lane = warp_row() + fragment_row(2 * r);
          const Interval keys =
              lanes.has(lane) ? walk.rows[part][lane / lanes.group].keys : Interval{0, 0};
#pragma unroll
          for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; ++e) {
              const float x = probability(p[j][e], a.scale, mine.log2_sum[r]);
              const bool seen = keys.sees(key + fragment_column(j, e));
              ds[j][e] = seen ? x * (ds[j][e] - mine.delta[r]) : 0.f;
            }
          }
        }
        dq.add_product(ds, tiles.k[buffer]);
      });
}

template <int D>
__device__ inline void store_lanes(const AttentionBackward& a, const TileLanes& lanes,
                                   const WarpSums<D>& dq) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int lane = warp_row() + fragment_row(2 * r);
    if (!lanes.has(lane)) continue;
    const int64_t target = row_offset(a.dq, lanes.row(lane), lanes.head(lane));
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; ++e) {
        store(a.dq, target + fragment_column(j, e), dq.at[j][e] * a.scale);
      }
    }
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads)
    query_gradient_bf16_kernel(AttentionBackward a, RowTiles row_tiles) {
  PERCHERON_DYNAMIC_SHARED(QueryGradientTiles<D>, tiles);
  PERCHERON_SHARED(KeyWalk, walk);
  const int group = static_cast<int>(a.q.heads / a.k.heads), count = row_tiles.count();
  // There are more tiles than blocks if the pack has several documents. The longest rows come last,
  // and go first.
  for (int i = static_cast<int>(blockIdx.x); i < count; i += static_cast<int>(gridDim.x)) {
    const RowTile tile = row_tiles[count - 1 - i];
    const TileLanes lanes{tile.first_row, blockIdx.y, tile.rows, group};
    copy_tile<D>(tiles->q, a.q, TileLanePlaces{a.q, lanes});
    copy_tile<D>(tiles->dout, a.dout, TileLanePlaces{a.dout, lanes});
    commit_copies();
    if (static_cast<int>(threadIdx.x) < tile.rows) {
      for (int part = 0; part < 2; ++part) {
        walk.rows[part][threadIdx.x] = {
            interval_of(a.intervals, tile.first_row + threadIdx.x, part), kAnyOrigin};
      }
    }
    LanePair mine{{0, 0}, {0, 0}};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int lane = warp_row() + fragment_row(2 * r);
      if (!lanes.has(lane)) continue;
      const int64_t at = lanes.row(lane) * a.q.heads + lanes.head(lane);
      mine.log2_sum[r] = a.log_sum_exp[at] * kLog2E;
      mine.delta[r] = a.delta[at];
    }
    __syncthreads();
    WarpSums<D> dq;
    dq.clear();
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      add_segment<D>(a, lanes, walk, *tiles, mine, part, dq);
    }
    store_lanes<D>(a, lanes, dq);
    wait_copies<0>();
    __syncthreads();  // Before the next tile's rows are written.
  }
}

template <int D>
struct KeyGradientTiles {
  uint16_t k[TileOf<D>::kElements], v[TileOf<D>::kElements];
  uint16_t q[2][TileOf<D>::kElements], dout[2][TileOf<D>::kElements];
};

struct LaneOfTile {
  Interval keys[2];
  float log2_sum, delta;

  __device__ bool sees(int64_t key) const { return keys[0].sees(key) || keys[1].sees(key); }
};

/// In shared memory beside the tiles.
struct LaneWalk {
  LaneOfTile lanes[2][kRows];  // by buffer
  uint32_t hits[kBlockWarps];  // a bit for each of kThreads row tiles: whether it sees the keys
};

/// The first row tile from `i` on whose bounds meet the keys, or count. Those of a batch of
/// kThreads are looked at together, when its first is reached. All threads of the block.
__device__ inline int next_row_tile(LaneWalk& walk, const RowTiles& tiles, int count, int64_t key,
                                    int i) {
  for (; i < count; ++i) {
    if (i % kThreads == 0) {
      __syncthreads();  // Everybody is done with the batch before.
      const int mine = i + static_cast<int>(threadIdx.x);
      const unsigned votes =
          __ballot_sync(kAllLanes, mine < count && tiles[mine].overlaps(key) ? 1 : 0);
      if (lane_of_warp() == 0) walk.hits[threadIdx.x / kWarpThreads] = votes;
      __syncthreads();
    }
    const uint32_t hits = walk.hits[i % kThreads / kWarpThreads];
    if ((hits >> i % kWarpThreads & 1) != 0) break;
  }
  return i;
}

/// Adds what 16 keys of a warp get from a tile's lanes to their gradients.
template <int D>
__device__ inline void add_lanes(const AttentionBackward& a, const KeyGradientTiles<D>& tiles,
                                 const LaneWalk& walk, int buffer, int first_key, WarpSums<D>& dk,
                                 WarpSums<D>& dv) {
  float p[kColumnBlocks][4], ds[kColumnBlocks][4];
  multiply_scores<D>(p, tiles.k, warp_row(), tiles.q[buffer]);
#pragma unroll
  for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const LaneOfTile& lane = walk.lanes[buffer][fragment_column(j, e)];
      const bool seen = lane.sees(first_key + fragment_row(e));
      p[j][e] = seen ? probability(p[j][e], a.scale, lane.log2_sum) : 0.f;
    }
  }
  dv.add_product(p, tiles.dout[buffer]);
  multiply_scores<D>(ds, tiles.v, warp_row(), tiles.dout[buffer]);
#pragma unroll
  for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float delta = walk.lanes[buffer][fragment_column(j, e)].delta;
      // A key that the lane does not see may hold anything.
      ds[j][e] = p[j][e] == 0.f ? 0.f : p[j][e] * (ds[j][e] - delta);
    }
  }
  dk.add_product(ds, tiles.q[buffer]);
}

/// Adds a thread's columns of factor * sums to its two keys' rows.
template <int D>
__device__ inline void add_to_rows(const WarpSums<D>& sums, float factor, const Rows& x,
                                   int64_t first_key, int64_t head) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t key = first_key + warp_row() + fragment_row(2 * r);
    if (key >= x.rows) continue;
    float* row = static_cast<float*>(x.data) + row_offset(x, key, head);
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; ++e) row[fragment_column(j, e)] += factor * sums.at[j][e];
    }
  }
}

/// Starts to copy a row tile's lanes into a buffer. All threads of the block; the caller commits.
template <int D>
__device__ inline void copy_lanes(const AttentionBackward& a, const RowTile& tile, int64_t kv_head,
                                  KeyGradientTiles<D>& tiles, LaneWalk& walk, int buffer) {
  const TileLanes lanes{tile.first_row, kv_head, tile.rows,
                        static_cast<int>(a.q.heads / a.k.heads)};
  copy_tile<D>(tiles.q[buffer], a.q, TileLanePlaces{a.q, lanes});
  copy_tile<D>(tiles.dout[buffer], a.dout, TileLanePlaces{a.dout, lanes});
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kRows) return;
  LaneOfTile lane{{{0, 0}, {0, 0}}, 0, 0};
  if (lanes.has(i)) {
    const int64_t row = lanes.row(i), at = row * a.q.heads + lanes.head(i);
    lane = {{interval_of(a.intervals, row, 0), interval_of(a.intervals, row, 1)},
            a.log_sum_exp[at] * kLog2E,
            a.delta[at]};
  }
  walk.lanes[buffer][i] = lane;
}

template <int D>
__global__ void __launch_bounds__(kThreads)
    key_gradient_bf16_kernel(AttentionBackward a, RowTiles row_tiles) {
  PERCHERON_DYNAMIC_SHARED(KeyGradientTiles<D>, tiles);
  PERCHERON_SHARED(LaneWalk, walk);
  const int64_t first_key = static_cast<int64_t>(blockIdx.x) * kRows, kv_head = blockIdx.y;
  const int count = row_tiles.count();
  int i = next_row_tile(walk, row_tiles, count, first_key, 0);
  if (i == count) return;  // Nobody sees these keys.
  const auto place = [&](const ConstRows& x) {
    return [&x, first_key, kv_head](int row) {
      return first_key + row < x.rows ? row_offset(x, first_key + row, kv_head) : -1;
    };
  };
  copy_tile<D>(tiles->k, a.k, place(a.k));
  copy_tile<D>(tiles->v, a.v, place(a.v));
  copy_lanes<D>(a, row_tiles[i], kv_head, *tiles, walk, 0);
  commit_copies();
  WarpSums<D> dk, dv;
  dk.clear();
  dv.clear();
  for (int buffer = 0; i < count; buffer ^= 1) {
    const int next = next_row_tile(walk, row_tiles, count, first_key, i + 1);
    if (next < count) copy_lanes<D>(a, row_tiles[next], kv_head, *tiles, walk, buffer ^ 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    add_lanes<D>(a, *tiles, walk, buffer, static_cast<int>(first_key) + warp_row(), dk, dv);
    __syncthreads();  // Before the buffer is written again.
    i = next;
  }
  wait_copies<0>();
  add_to_rows<D>(dk, a.scale, a.dk, first_key, kv_head);
  add_to_rows<D>(dv, 1.f, a.dv, first_key, kv_head);
}

template <int D>
void put_kernels(Queue& queue, const AttentionBackward& a, const RowTiles& tiles) {
  const int64_t rows = rows_of_tile(a.q.heads / a.k.heads);
  launch(queue, query_gradient_bf16_kernel<D>,
         {(a.q.rows + rows - 1) / rows, a.k.heads, sizeof(QueryGradientTiles<D>)}, kThreads, a,
         tiles);
  launch(queue, key_gradient_bf16_kernel<D>,
         {(a.k.rows + kRows - 1) / kRows, a.k.heads, sizeof(KeyGradientTiles<D>)}, kThreads, a,
         tiles);
}

}  // namespace

bool suits_tensor_cores(const AttentionBackward& a) {
  return is_tensor_core_operand(a.q) && is_tensor_core_operand(a.k) &&
         is_tensor_core_operand(a.v) && is_tensor_core_operand(a.dout) &&
         a.q.heads / a.k.heads <= kTensorCoreGroupMax;
}

void attention_bf16_backward(Queue& queue, const AttentionBackward& a) {
  const RowTiles tiles{reinterpret_cast<RowTile*>(a.row_tiles)};
  launch(queue, plan_kernel, {1}, kPlanThreads, a.intervals, a.q.rows,
         rows_of_tile(a.q.heads / a.k.heads), tiles);
  switch (a.q.columns) {
    case 64: return put_kernels<64>(queue, a, tiles);
    case 96: return put_kernels<96>(queue, a, tiles);
    default: return put_kernels<128>(queue, a, tiles);
  }
}

}  // namespace percheron::cuda
