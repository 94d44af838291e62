// Attention with interval masks, forward, in f32 for any shape: a block per tile of query lanes and
// key head. Its keys are gone through twice, once for the largest score and once for the sums.

#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/kernels.h"

namespace percheron::cuda {
namespace {

struct ForwardTiles {
  ColumnTile a, b;
  ScoreTile p;
};

/// scores[j] of the thread's lane and its keys of the tile from `key` on; -infinity where masked.
template <int Chunks>
__device__ inline void score_tile(const Attention& a, ForwardTiles& tiles, const Lane& lane,
                                  int64_t first_lane, int64_t kv_head, int part, int64_t key,
                                  float (&scores)[kKeysEach]) {
  const int64_t group = a.q.heads / a.k.heads;
  multiply_tiles<Chunks>(tiles.a, tiles.b, a.q, LanePlaces{a.q, first_lane, kv_head, group}, a.k,
                         KeyPlaces{a.k, key, kv_head}, scores);
#pragma unroll
  for (int j = 0; j < kKeysEach; ++j) {
    const bool seen = lane.intervals.at(part).sees(key + part_index() + kParts * j);
    scores[j] = seen ? scores[j] * a.scale : -INFINITY;
  }
}

template <int Chunks>
__global__ void __launch_bounds__(kTileThreads, 1) attention_kernel(Attention a) {
  PERCHERON_SHARED(ForwardTiles, tiles);
  const int64_t first_lane = static_cast<int64_t>(blockIdx.x) * kTile, kv_head = blockIdx.y;
  const int64_t group = a.q.heads / a.k.heads;
  const Lane lane = lane_at(first_lane + tile_index(), kv_head, group, a.q.rows, a.intervals);
  const Intervals bounds = tile_bounds(lane);

  float scores[kKeysEach], largest = -INFINITY;
  for_key_tiles(lane, bounds, [&](int part, int64_t key) {
    score_tile<Chunks>(a, tiles, lane, first_lane, kv_head, part, key, scores);
#pragma unroll
    for (int j = 0; j < kKeysEach; ++j) largest = fmaxf(largest, scores[j]);
  });
  for (int distance = kParts / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
  }

  Accumulator<Chunks> out;
  out.clear();
  float sum = 0;
  for_key_tiles(lane, bounds, [&](int part, int64_t key) {
    score_tile<Chunks>(a, tiles, lane, first_lane, kv_head, part, key, scores);
#pragma unroll
    for (int j = 0; j < kKeysEach; ++j) {
      const bool seen = scores[j] > -INFINITY;
      tiles.p[tile_index()][part_index() + kParts * j] = seen ? expf(scores[j] - largest) : 0.f;
    }
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum += tiles.p[tile_index()][i];
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
      load_tile(tiles.b, a.v, chunk, KeyPlaces{a.v, key, kv_head});
      __syncthreads();
#pragma unroll 4
      for (int i = 0; i < kTile; ++i) {
        const float p = tiles.p[tile_index()][i];
        if (p != 0.f) out.add(chunk, p, tiles.b[i]);
      }
      __syncthreads();
    }
  });

  if (!lane.valid) return;
  const float inverse = sum > 0 ? 1 / sum : 0.f;
  const int64_t target = row_offset(a.out, lane.row, lane.head);
  out.each(a.out.columns,
           [&](int64_t column, float value) { store(a.out, target + column, value * inverse); });
  if (a.log_sum_exp != nullptr && part_index() == 0) {
    a.log_sum_exp[lane.row * a.q.heads + lane.head] = sum > 0 ? largest + logf(sum) : -INFINITY;
  }
}

}  // namespace

void attention(Queue& queue, const Attention& a) {
  if (suits_tensor_cores(a)) return attention_bf16(queue, a);
  const int64_t lanes = a.q.rows * (a.q.heads / a.k.heads);
  const Grid grid{(lanes + kTile - 1) / kTile, a.k.heads};
  switch (chunks_of(a.q.columns)) {
    case 1: return launch(queue, attention_kernel<1>, grid, kTileThreads, a);
    case 2: return launch(queue, attention_kernel<2>, grid, kTileThreads, a);
    default: return launch(queue, attention_kernel<4>, grid, kTileThreads, a);
  }
}

}  // namespace percheron::cuda
