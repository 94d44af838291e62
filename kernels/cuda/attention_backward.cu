// The gradients of attention with interval masks, in f32 for any shape. One kernel goes through the
// keys of each tile of query lanes for dq, another through the lanes of each tile of keys for dk
// and dv: no atomic additions, so the bits are always the same.

#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"

namespace percheron::cuda {
namespace {

struct BackwardTiles {
  ColumnTile a, b;
  ScoreTile p, ds;
};

/// delta[row, head] = dout . out, a warp each.
__global__ void delta_kernel(AttentionBackward a) {
  const int64_t part =
      (static_cast<int64_t>(blockIdx.x) * kReduceThreads + threadIdx.x) / kWarpThreads;
  if (part >= a.q.rows * a.q.heads) return;
  const int64_t row = part / a.q.heads, head = part % a.q.heads;
  const int64_t dout = row_offset(a.dout, row, head), out = row_offset(a.out, row, head);
  float sum = 0;
  for (int64_t i = threadIdx.x % kWarpThreads; i < a.q.columns; i += kWarpThreads) {
    sum += load(a.dout, dout + i) * load(a.out, out + i);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarpThreads == 0) a.delta[part] = sum;
}

/// p and ds of the thread's lane and its keys of the tile from `key` on: the probabilities, and the
/// gradient of the scores before scaling. 0 for keys that are not seen.
template <int Chunks>
__device__ inline void gradient_tile(const AttentionBackward& a, BackwardTiles& tiles,
                                     const Lane& lane, int64_t first_lane, int64_t kv_head,
                                     int64_t key, const bool (&seen)[kKeysEach],
                                     float (&p)[kKeysEach], float (&ds)[kKeysEach]) {
  const int64_t group = a.q.heads / a.k.heads;
  multiply_tiles<Chunks>(tiles.a, tiles.b, a.q, LanePlaces{a.q, first_lane, kv_head, group}, a.k,
                         KeyPlaces{a.k, key, kv_head}, p);
  multiply_tiles<Chunks>(tiles.a, tiles.b, a.dout, LanePlaces{a.dout, first_lane, kv_head, group},
                         a.v, KeyPlaces{a.v, key, kv_head}, ds);
  const int64_t at = lane.row * a.q.heads + lane.head;
  const float log_sum = lane.valid ? a.log_sum_exp[at] : 0.f;
  const float delta = lane.valid ? a.delta[at] : 0.f;
#pragma unroll
  for (int j = 0; j < kKeysEach; ++j) {
    p[j] = seen[j] ? expf(p[j] * a.scale - log_sum) : 0.f;
    ds[j] = seen[j] ? p[j] * (ds[j] - delta) * a.scale : 0.f;
  }
}

template <int Chunks>
__global__ void __launch_bounds__(kTileThreads, 1) query_gradient_kernel(AttentionBackward a) {
  PERCHERON_SHARED(BackwardTiles, tiles);
  const int64_t first_lane = static_cast<int64_t>(blockIdx.x) * kTile, kv_head = blockIdx.y;
  const Lane lane =
      lane_at(first_lane + tile_index(), kv_head, a.q.heads / a.k.heads, a.q.rows, a.intervals);
  const Intervals bounds = tile_bounds(lane);
  Accumulator<Chunks> dq;
  dq.clear();
  for_key_tiles(lane, bounds, [&](int part, int64_t key) {
    float p[kKeysEach], ds[kKeysEach];
    bool seen[kKeysEach];
#pragma unroll
    for (int j = 0; j < kKeysEach; ++j) {
      seen[j] = lane.intervals.at(part).sees(key + part_index() + kParts * j);
    }
    gradient_tile<Chunks>(a, tiles, lane, first_lane, kv_head, key, seen, p, ds);
#pragma unroll
    for (int j = 0; j < kKeysEach; ++j) tiles.ds[tile_index()][part_index() + kParts * j] = ds[j];
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
      load_tile(tiles.b, a.k, chunk, KeyPlaces{a.k, key, kv_head});
      __syncthreads();
#pragma unroll 4
      for (int i = 0; i < kTile; ++i) {
        const float factor = tiles.ds[tile_index()][i];
        if (factor != 0.f) dq.add(chunk, factor, tiles.b[i]);
      }
      __syncthreads();
    }
  });
  if (!lane.valid) return;
  const int64_t target = row_offset(a.dq, lane.row, lane.head);
  dq.each(a.dq.columns, [&](int64_t column, float value) { store(a.dq, target + column, value); });
}

/// Adds the sums of a thread's key to its row of the gradient.
template <int Chunks>
__device__ inline void add_to_row(const Accumulator<Chunks>& sums, const Rows& x, int64_t key,
                                  int64_t head) {
  float* row = static_cast<float*>(x.data) + row_offset(x, key, head);
  sums.each(x.columns, [&](int64_t column, float value) { row[column] += value; });
}

template <int Chunks>
__global__ void __launch_bounds__(kTileThreads, 1) key_gradient_kernel(AttentionBackward a) {
  PERCHERON_SHARED(BackwardTiles, tiles);
  const int64_t first_key = static_cast<int64_t>(blockIdx.x) * kTile, kv_head = blockIdx.y;
  const int64_t group = a.q.heads / a.k.heads, lanes = a.q.rows * group;
  Accumulator<Chunks> dk, dv;
  dk.clear();
  dv.clear();
  for (int64_t first_lane = 0; first_lane < lanes; first_lane += kTile) {
    const Lane lane = lane_at(first_lane + tile_index(), kv_head, group, a.q.rows, a.intervals);
    const bool overlaps = lane.intervals.first.overlaps(first_key, kTile) ||
                          lane.intervals.second.overlaps(first_key, kTile);
    if (__syncthreads_or(overlaps ? 1 : 0) == 0) continue;
    float p[kKeysEach], ds[kKeysEach];
    bool seen[kKeysEach];
#pragma unroll
    for (int j = 0; j < kKeysEach; ++j) {
      const int64_t key = first_key + part_index() + kParts * j;
      seen[j] = lane.intervals.first.sees(key) || lane.intervals.second.sees(key);
    }
    gradient_tile<Chunks>(a, tiles, lane, first_lane, kv_head, first_key, seen, p, ds);
#pragma unroll
    for (int j = 0; j < kKeysEach; ++j) {
      tiles.p[tile_index()][part_index() + kParts * j] = p[j];
      tiles.ds[tile_index()][part_index() + kParts * j] = ds[j];
    }
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
      load_tile(tiles.a, a.dout, chunk, LanePlaces{a.dout, first_lane, kv_head, group});
      load_tile(tiles.b, a.q, chunk, LanePlaces{a.q, first_lane, kv_head, group});
      __syncthreads();
#pragma unroll 4
      for (int i = 0; i < kTile; ++i) {  // From here on tile_index() is the thread's key.
        const float p_of_lane = tiles.p[i][tile_index()], ds_of_lane = tiles.ds[i][tile_index()];
        if (p_of_lane != 0.f) dv.add(chunk, p_of_lane, tiles.a[i]);
        if (ds_of_lane != 0.f) dk.add(chunk, ds_of_lane, tiles.b[i]);
      }
      __syncthreads();
    }
  }
  const int64_t key = first_key + tile_index();
  if (key >= a.k.rows) return;
  add_to_row(dk, a.dk, key, kv_head);
  add_to_row(dv, a.dv, key, kv_head);
}

template <int Chunks>
void put_kernels(Queue& queue, const AttentionBackward& a) {
  const int64_t lanes = a.q.rows * (a.q.heads / a.k.heads);
  launch(queue, query_gradient_kernel<Chunks>, {(lanes + kTile - 1) / kTile, a.k.heads},
         kTileThreads, a);
  launch(queue, key_gradient_kernel<Chunks>, {(a.k.rows + kTile - 1) / kTile, a.k.heads},
         kTileThreads, a);
}

}  // namespace

void attention_backward(Queue& queue, const AttentionBackward& a) {
  const int64_t threads = a.q.rows * a.q.heads * kWarpThreads;
  launch(queue, delta_kernel, {(threads + kReduceThreads - 1) / kReduceThreads}, kReduceThreads, a);
  if (suits_tensor_cores(a)) return attention_bf16_backward(queue, a);
  switch (chunks_of(a.q.columns)) {
    case 1: return put_kernels<1>(queue, a);
    case 2: return put_kernels<2>(queue, a);
    default: return put_kernels<4>(queue, a);
  }
}

}  // namespace percheron::cuda
