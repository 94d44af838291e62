// Attention with interval masks, forward, for bf16 on tensor cores: 64 query lanes to a block, 16
// to a warp, tiles of 64 keys that are copied while the last one is worked on. Source: Dao 2023
// (FlashAttention-2).
//
// Bits must not depend on what lies before a document in its pack, nor on the rows that are decoded
// together. Tiles of keys are therefore counted from where a row's interval begins, or from the
// origin that it names: the lanes of one origin form a segment, and the block goes through its
// segments one after the other. For a lane of another segment a tile changes nothing, to the bit:
// its largest score stays, what it has is multiplied by one, and zeros are added. Few rows share a
// tile with a second document. Rows of a sliding window that name no origin cost a segment each.

#include "kernels/cuda/attention_bf16_tiles.cuh"
#include "kernels/cuda/kernels.h"

namespace percheron::cuda {
namespace {

/// The softmax of a thread's two lanes so far, in powers of two.
template <int D>
struct Softmax {
  float largest[2], sum[2];
  WarpSums<D> out;

  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = -INFINITY;
      sum[r] = 0;
    }
    out.clear();
  }

  /// Turns the scores of a tile into weights for its values, and rescales what was there.
  __device__ void take(float (&scores)[kColumnBlocks][4]) {
    float top[2] = {largest[0], largest[1]}, base[2];
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) top[e / 2] = fmaxf(top[e / 2], scores[j][e]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(top[r], __shfl_xor_sync(kAllLanes, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(kAllLanes, top[r], 2));
      // A lane that has seen nothing yet subtracts zero: infinity less infinity is no number.
      base[r] = top[r] == -INFINITY ? 0.f : top[r];
      const float rescale = exp2f(largest[r] - base[r]);
      largest[r] = top[r];
      sum[r] *= rescale;
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        out.at[j][2 * r] *= rescale;
        out.at[j][2 * r + 1] *= rescale;
      }
    }
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[j][e] = exp2f(scores[j][e] - base[e / 2]);
        sum[e / 2] += scores[j][e];
      }
    }
  }
};

template <int D>
struct BlockTiles {
  uint16_t q[TileOf<D>::kElements];
  uint16_t k[2][TileOf<D>::kElements];
  uint16_t v[2][TileOf<D>::kElements];
};

/// Lets the block's lanes see the keys of one segment.
template <int D>
__device__ inline void see_segment(const Attention& a, const TileLanes& lanes, KeyWalk& walk,
                                   BlockTiles<D>& tiles, const Segment& segment, int part,
                                   Softmax<D>& softmax) {
  Interval mine[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int lane = warp_row() + fragment_row(2 * r);
    mine[r] = lanes.has(lane) ? walk.rows[part][lane / lanes.group].keys_of(segment.origin)
                              : Interval{0, 0};
  }
  walk_keys(
      walk, segment, part, lanes.rows,
      [&](int64_t key, int buffer) {
        const uint8_t* seen = walk.seen[buffer];
        copy_tile<D>(tiles.k[buffer], a.k, SeenKeyPlaces{a.k, seen, key, lanes.kv_head});
        copy_tile<D>(tiles.v[buffer], a.v, SeenKeyPlaces{a.v, seen, key, lanes.kv_head});
      },
      [&](int64_t key, int buffer) {
        float scores[kColumnBlocks][4];
        multiply_scores<D>(scores, tiles.q, warp_row(), tiles.k[buffer]);
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const bool seen = mine[e / 2].sees(key + fragment_column(j, e));
            scores[j][e] = seen ? scores[j][e] * (a.scale * kLog2E) : -INFINITY;
          }
        }
        softmax.take(scores);
        softmax.out.add_product(scores, tiles.v[buffer]);
      });
}

/// The key from which the tiles of a row's first interval are counted. The bits of a row that sees
/// one interval must not depend on the rows beside it; a drafter's, with two, may.
__device__ inline int32_t origin_of(const int32_t* intervals, int64_t row) {
  const int32_t* i = intervals + row * 4;
  if (i[2] < i[3]) return kAnyOrigin;
  const bool given = i[3] == kOriginOnly && i[2] >= 0 && i[2] <= i[0];
  return given ? i[2] : i[0];
}

/// Writes a thread's columns of one of its two lanes.
template <int D>
__device__ inline void finish_lane(const Attention& a, int64_t row, int64_t head,
                                   const Softmax<D>& softmax, int r, float sum) {
  const float inverse = sum > 0 ? 1 / sum : 0.f;
  const int64_t target = row_offset(a.out, row, head);
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
#pragma unroll
    for (int e = 2 * r; e < 2 * r + 2; ++e) {
      store(a.out, target + fragment_column(j, e), softmax.out.at[j][e] * inverse);
    }
  }
  if (a.log_sum_exp != nullptr && fragment_column(0, 0) == 0) {
    a.log_sum_exp[row * a.q.heads + head] =
        sum > 0 ? softmax.largest[r] * kLn2 + logf(sum) : -INFINITY;
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads) attention_bf16_kernel(Attention a) {
  PERCHERON_DYNAMIC_SHARED(BlockTiles<D>, tiles);
  PERCHERON_SHARED(KeyWalk, walk);
  const int group = static_cast<int>(a.q.heads / a.k.heads), rows_max = rows_of_tile(group);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * rows_max;
  const int64_t rows_left = a.q.rows - first_row;
  const TileLanes lanes{first_row, blockIdx.y,
                        rows_left < rows_max ? static_cast<int>(rows_left) : rows_max, group};
  copy_tile<D>(tiles->q, a.q, TileLanePlaces{a.q, lanes});
  commit_copies();
  if (static_cast<int>(threadIdx.x) < lanes.rows) {
    const int64_t row = first_row + threadIdx.x;
    walk.rows[0][threadIdx.x] = {interval_of(a.intervals, row, 0), origin_of(a.intervals, row)};
    walk.rows[1][threadIdx.x] = {interval_of(a.intervals, row, 1), kAnyOrigin};
  }
  __syncthreads();
  Softmax<D> softmax;
  softmax.clear();
  for (int part = 0; part < 2; ++part) {
    Segment segment = next_segment(walk, part, lanes.rows, kAnyOrigin - 1);
    while (!segment.empty()) {
      see_segment<D>(a, lanes, walk, *tiles, segment, part, softmax);
      segment = next_segment(walk, part, lanes.rows, segment.origin);
    }
  }
  wait_copies<0>();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.sum[r];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    const int lane = warp_row() + fragment_row(2 * r);
    if (lanes.has(lane)) finish_lane<D>(a, lanes.row(lane), lanes.head(lane), softmax, r, sum);
  }
}

template <int D>
void put_kernel(Queue& queue, const Attention& a) {
  const int64_t rows = rows_of_tile(a.q.heads / a.k.heads);
  launch(queue, attention_bf16_kernel<D>,
         {(a.q.rows + rows - 1) / rows, a.k.heads, sizeof(BlockTiles<D>)}, kThreads, a);
}

}  // namespace

bool suits_tensor_cores(const Attention& a) {
  return is_tensor_core_operand(a.q) && is_tensor_core_operand(a.k) &&
         is_tensor_core_operand(a.v) && a.q.heads / a.k.heads <= kTensorCoreGroupMax;
}

void attention_bf16(Queue& queue, const Attention& a) {
  switch (a.q.columns) {
    case 64: return put_kernel<64>(queue, a);
    case 96: return put_kernel<96>(queue, a);
    default: return put_kernel<128>(queue, a);
  }
}

}  // namespace percheron::cuda
