// Attention with interval masks, forward, for bf16 on tensor cores: 64 query lanes to a block, 16
// to a warp, tiles of 64 keys that are copied while the last one is worked on. Source: Dao 2023
// (FlashAttention-2).
//
// Bits must not depend on what lies before a document in its pack. Tiles of keys therefore begin
// where intervals begin: lanes whose interval begins at the same key form a segment, and the block
// goes through its segments one after the other. For a lane of another segment a tile changes
// nothing, to the bit: its largest score stays, what it has is multiplied by one, and zeros are
// added. Few rows share a tile with a second document; masks whose rows all begin elsewhere
// (sliding windows) cost a segment per row.

#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/tensor_core.cuh"

namespace percheron::cuda {
namespace {

constexpr int kRows = 64;  // lanes of a block, and keys of a tile
constexpr int kThreads = 128;
constexpr int kKeyBlocks = kRows / 8;  // a thread's columns of scores come in eights of keys
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.69314718f;

/// A tile in shared memory: 64 rows of D columns. The padding keeps the eight rows of a fragment on
/// different banks.
template <int D>
struct TileOf {
  static constexpr int kStride = D + 8;
  static constexpr int kElements = kRows * kStride;
};

struct alignas(16) Vector {
  uint32_t words[4];
};

/// Starts to copy 64 rows; those without a place become zero. The caller commits.
template <int D, class Place>
__device__ inline void copy_tile(uint16_t* tile, const ConstRows& x, Place place) {
  constexpr int kVectors = D / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kVectors; i += kThreads) {
    const int row = i / kVectors, column = i % kVectors * 8;
    uint16_t* target = tile + row * TileOf<D>::kStride + column;
    const int64_t offset = place(row);
    if (offset >= 0) {
      copy_async(target, static_cast<const uint16_t*>(x.data) + offset + column);
    } else {
      *reinterpret_cast<Vector*>(target) = Vector{{0, 0, 0, 0}};
    }
  }
}

/// Places of the keys [first, end).
struct SegmentPlaces {
  const ConstRows& x;
  int64_t first, end, head;

  __device__ int64_t operator()(int i) const {
    return first + i < end ? row_offset(x, first + i, head) : -1;
  }
};

__device__ inline int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarpThreads; }

/// scores [16, 64] of a warp = rows [row, row + 16) of q times the rows of k.
template <int D>
__device__ inline void multiply_scores(float (&scores)[kKeyBlocks][4], const uint16_t* q, int row,
                                       const uint16_t* k) {
  constexpr int kStride = TileOf<D>::kStride;
  const int lane = lane_of_warp();
#pragma unroll
  for (int j = 0; j < kKeyBlocks; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[j][e] = 0;
  }
#pragma unroll
  for (int depth = 0; depth < D; depth += 16) {
    uint32_t a[4];
    load_fragments(a, q + (row + lane % 16) * kStride + depth + lane / 16 * 8);
#pragma unroll
    for (int j = 0; j < kKeyBlocks; j += 2) {
      uint32_t b[4];
      load_fragments(b,
                     k + (j * 8 + lane % 8 + lane / 16 * 8) * kStride + depth + lane / 8 % 2 * 8);
      multiply_fragments(scores[j], a, {b[0], b[1]});
      multiply_fragments(scores[j + 1], a, {b[2], b[3]});
    }
  }
}

__device__ inline uint32_t pack(float low, float high) {
  return bf16_of_float(low) | static_cast<uint32_t>(bf16_of_float(high)) << 16;
}

/// out [16, D] of a warp += p [16, 64] times the rows of v.
template <int D>
__device__ inline void add_values(float (&out)[D / 8][4], const float (&p)[kKeyBlocks][4],
                                  const uint16_t* v) {
  constexpr int kStride = TileOf<D>::kStride;
  const int lane = lane_of_warp();
#pragma unroll
  for (int k = 0; k < kKeyBlocks / 2; ++k) {
    const uint32_t a[4] = {pack(p[2 * k][0], p[2 * k][1]), pack(p[2 * k][2], p[2 * k][3]),
                           pack(p[2 * k + 1][0], p[2 * k + 1][1]),
                           pack(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
    for (int j = 0; j < D / 8; j += 2) {
      uint32_t b[4];
      load_fragments_transposed(b, v + (k * 16 + lane % 16) * kStride + j * 8 + lane / 16 * 8);
      multiply_fragments(out[j], a, {b[0], b[1]});
      multiply_fragments(out[j + 1], a, {b[2], b[3]});
    }
  }
}

/// The softmax of a thread's two lanes so far, in powers of two.
template <int D>
struct Softmax {
  float largest[2], sum[2];
  float out[D / 8][4];

  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = -INFINITY;
      sum[r] = 0;
    }
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out[j][e] = 0;
    }
  }

  /// Turns the scores of a tile into weights for its values, and rescales what was there.
  __device__ void take(float (&scores)[kKeyBlocks][4]) {
    float top[2] = {largest[0], largest[1]}, base[2];
#pragma unroll
    for (int j = 0; j < kKeyBlocks; ++j) {
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
        out[j][2 * r] *= rescale;
        out[j][2 * r + 1] *= rescale;
      }
    }
#pragma unroll
    for (int j = 0; j < kKeyBlocks; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[j][e] = exp2f(scores[j][e] - base[e / 2]);
        sum[e / 2] += scores[j][e];
      }
    }
  }
};

/// What a block has in shared memory beside its tiles.
struct LaneIntervals {
  Interval at[kRows][2];
};

/// The keys of the next segment after those that begin at `after`; empty when there is none.
__device__ inline Interval next_segment(const LaneIntervals& lanes, int part, int32_t after) {
  Interval segment{0, 0};
  for (int i = 0; i < kRows; ++i) {
    const Interval lane = lanes.at[i][part];
    if (lane.begin >= lane.end || lane.begin <= after) continue;
    if (segment.begin == segment.end || lane.begin < segment.begin) {
      segment = lane;
    } else if (lane.begin == segment.begin && lane.end > segment.end) {
      segment.end = lane.end;
    }
  }
  return segment;
}

template <int D>
struct BlockTiles {
  uint16_t q[TileOf<D>::kElements];
  uint16_t k[2][TileOf<D>::kElements];
  uint16_t v[2][TileOf<D>::kElements];
};

/// Lets the block's lanes see the keys of one segment.
template <int D>
__device__ inline void see_segment(const Attention& a, BlockTiles<D>& tiles, int64_t kv_head,
                                   Interval segment, const Interval (&mine)[2],
                                   Softmax<D>& softmax) {
  const int warp_row = static_cast<int>(threadIdx.x) / kWarpThreads * 16;
  const int first_column = lane_of_warp() % 4 * 2;
  const auto copy_keys = [&](int64_t key, int buffer) {
    copy_tile<D>(tiles.k[buffer], a.k, SegmentPlaces{a.k, key, segment.end, kv_head});
    copy_tile<D>(tiles.v[buffer], a.v, SegmentPlaces{a.v, key, segment.end, kv_head});
  };
  copy_keys(segment.begin, 0);
  commit_copies();
  int buffer = 0;
  for (int64_t key = segment.begin; key < segment.end; key += kRows, buffer ^= 1) {
    if (key + kRows < segment.end) copy_keys(key + kRows, buffer ^ 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    float scores[kKeyBlocks][4];
    multiply_scores<D>(scores, tiles.q, warp_row, tiles.k[buffer]);
#pragma unroll
    for (int j = 0; j < kKeyBlocks; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const Interval lane = mine[e / 2];
        const int64_t here = key + j * 8 + first_column + e % 2;
        const bool seen = lane.begin == segment.begin && here < lane.end;
        scores[j][e] = seen ? scores[j][e] * (a.scale * kLog2E) : -INFINITY;
      }
    }
    softmax.take(scores);
    add_values<D>(softmax.out, scores, tiles.v[buffer]);
    __syncthreads();
  }
}

/// Writes a thread's columns of one of its two lanes.
template <int D>
__device__ inline void finish_lane(const Attention& a, const Lane& lane, const Softmax<D>& softmax,
                                   int r, float sum) {
  if (!lane.valid) return;
  const int first_column = lane_of_warp() % 4 * 2;
  const float inverse = sum > 0 ? 1 / sum : 0.f;
  const int64_t target = row_offset(a.out, lane.row, lane.head) + first_column;
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    store(a.out, target + j * 8, softmax.out[j][2 * r] * inverse);
    store(a.out, target + j * 8 + 1, softmax.out[j][2 * r + 1] * inverse);
  }
  if (a.log_sum_exp != nullptr && first_column == 0) {
    a.log_sum_exp[lane.row * a.q.heads + lane.head] =
        sum > 0 ? softmax.largest[r] * kLn2 + logf(sum) : -INFINITY;
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads) attention_bf16_kernel(Attention a) {
  PERCHERON_DYNAMIC_SHARED(BlockTiles<D>, tiles);
  PERCHERON_SHARED(LaneIntervals, intervals);
  const int64_t first_lane = static_cast<int64_t>(blockIdx.x) * kRows, kv_head = blockIdx.y;
  const int64_t group = a.q.heads / a.k.heads;
  copy_tile<D>(tiles->q, a.q, LanePlaces{a.q, first_lane, kv_head, group});
  commit_copies();
  if (threadIdx.x < kRows) {
    const Lane lane = lane_at(first_lane + threadIdx.x, kv_head, group, a.q.rows, a.intervals);
    for (int part = 0; part < 2; ++part) intervals.at[threadIdx.x][part] = lane.intervals.at(part);
  }
  // The thread's lanes: rows lane / 4 and lane / 4 + 8 of its warp's sixteen.
  const int row = static_cast<int>(threadIdx.x) / kWarpThreads * 16 + lane_of_warp() / 4;
  __syncthreads();
  Softmax<D> softmax;
  softmax.clear();
  for (int part = 0; part < 2; ++part) {
    const Interval mine[2] = {intervals.at[row][part], intervals.at[row + 8][part]};
    Interval segment = next_segment(intervals, part, -1);
    while (segment.begin < segment.end) {
      see_segment<D>(a, *tiles, kv_head, segment, mine, softmax);
      segment = next_segment(intervals, part, segment.begin);
    }
  }
  wait_copies<0>();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.sum[r];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    const Lane lane = lane_at(first_lane + row + 8 * r, kv_head, group, a.q.rows, a.intervals);
    finish_lane<D>(a, lane, softmax, r, sum);
  }
}

/// Whether rows can be copied 16 bytes at a time.
bool is_aligned(const ConstRows& x) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.row_stride % 8 == 0 &&
         x.head_stride % 8 == 0;
}

template <int D>
void put_kernel(Queue& queue, const Attention& a) {
  const int64_t lanes = a.q.rows * (a.q.heads / a.k.heads);
  launch(queue, attention_bf16_kernel<D>,
         {(lanes + kRows - 1) / kRows, a.k.heads, sizeof(BlockTiles<D>)}, kThreads, a);
}

}  // namespace

bool suits_tensor_cores(const Attention& a) {
  const int64_t d = a.q.columns;
  for (const ConstRows& x : {a.q, a.k, a.v}) {
    if (x.dtype != DType::kBf16 || !is_aligned(x)) return false;
  }
  return d == 64 || d == 96 || d == 128;
}

void attention_bf16(Queue& queue, const Attention& a) {
  switch (a.q.columns) {
    case 64: return put_kernel<64>(queue, a);
    case 96: return put_kernel<96>(queue, a);
    default: return put_kernel<128>(queue, a);
  }
}

}  // namespace percheron::cuda
