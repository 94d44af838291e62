#pragma once

// What the tensor-core kernels of attention share: blocks of 64 query lanes or keys, 16 to a warp;
// tiles of 64 rows in shared memory; the two products between them; the walk over the tiles of keys
// that a block's rows see.
//
// A block's lanes are whole rows: 64 / group of them, with the `group` heads that share a key head
// side by side. A DFlash block of 16 rows and 4 heads to a key head fills a tile exactly.

#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace percheron::cuda {

constexpr int kRows = 64;  // lanes of a block, and keys of a tile
constexpr int kThreads = 128;
constexpr int kBlockWarps = kThreads / kWarpThreads;
constexpr int kColumnBlocks = kRows / 8;  // a thread's columns of scores come in eights
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

__device__ inline int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarpThreads; }
/// The first of the warp's 16 rows.
__device__ inline int warp_row() { return static_cast<int>(threadIdx.x) / kWarpThreads * 16; }
/// Where a fragment has element e of a thread's four in column block j: the row within the warp's
/// 16, and the column.
__device__ inline int fragment_row(int e) { return lane_of_warp() / 4 + e / 2 * 8; }
__device__ inline int fragment_column(int j, int e) {
  return j * 8 + lane_of_warp() % 4 * 2 + e % 2;
}

/// scores [16, 64] of a warp = rows [row, row + 16) of a times the rows of b.
template <int D>
__device__ inline void multiply_scores(float (&scores)[kColumnBlocks][4], const uint16_t* a,
                                       int row, const uint16_t* b) {
  constexpr int kStride = TileOf<D>::kStride;
  const int lane = lane_of_warp();
#pragma unroll
  for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[j][e] = 0;
  }
#pragma unroll
  for (int depth = 0; depth < D; depth += 16) {
    uint32_t rows[4];
    load_fragments(rows, a + (row + lane % 16) * kStride + depth + lane / 16 * 8);
#pragma unroll
    for (int j = 0; j < kColumnBlocks; j += 2) {
      uint32_t columns[4];
      load_fragments(columns,
                     b + (j * 8 + lane % 8 + lane / 16 * 8) * kStride + depth + lane / 8 % 2 * 8);
      multiply_fragments(scores[j], rows, {columns[0], columns[1]});
      multiply_fragments(scores[j + 1], rows, {columns[2], columns[3]});
    }
  }
}

__device__ inline uint32_t pack(float low, float high) {
  return bf16_of_float(low) | static_cast<uint32_t>(bf16_of_float(high)) << 16;
}

/// A warp's 16 rows of D sums, spread over its threads.
template <int D>
struct WarpSums {
  float at[D / 8][4];

  __device__ void clear() {
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) at[j][e] = 0;
    }
  }

  /// += p [16, 64], rounded to bf16, times the rows of x.
  __device__ void add_product(const float (&p)[kColumnBlocks][4], const uint16_t* x) {
    constexpr int kStride = TileOf<D>::kStride;
    const int lane = lane_of_warp();
#pragma unroll
    for (int k = 0; k < kColumnBlocks / 2; ++k) {
      const uint32_t a[4] = {pack(p[2 * k][0], p[2 * k][1]), pack(p[2 * k][2], p[2 * k][3]),
                             pack(p[2 * k + 1][0], p[2 * k + 1][1]),
                             pack(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
      for (int j = 0; j < D / 8; j += 2) {
        uint32_t b[4];
        load_fragments_transposed(b, x + (k * 16 + lane % 16) * kStride + j * 8 + lane / 16 * 8);
        multiply_fragments(at[j], a, {b[0], b[1]});
        multiply_fragments(at[j + 1], a, {b[2], b[3]});
      }
    }
  }
};

/// The lanes of a block: lane i is head i % group of row i / group.
struct TileLanes {
  int64_t first_row, kv_head;
  int rows, group;

  __device__ bool has(int lane) const { return lane < rows * group; }
  __device__ int64_t row(int lane) const { return first_row + lane / group; }
  __device__ int64_t head(int lane) const { return kv_head * group + lane % group; }
};
struct TileLanePlaces {
  const ConstRows& x;
  const TileLanes& lanes;

  __device__ int64_t operator()(int i) const {
    return lanes.has(i) ? row_offset(x, lanes.row(i), lanes.head(i)) : -1;
  }
};
__host__ __device__ inline int rows_of_tile(int64_t group) {
  return static_cast<int>(kRows / group);
}

/// What a row of a block sees. Rows with the same origin go through their keys together, in tiles
/// that begin at multiples of 64 keys from it, or with kAnyOrigin at the first key of any.
constexpr int32_t kAnyOrigin = -1;
struct TileRow {
  Interval keys;
  int32_t origin;

  __device__ Interval keys_of(int32_t of_origin) const {
    return origin == of_origin ? keys : Interval{0, 0};
  }
};

/// In shared memory beside the tiles of a walk over keys.
struct KeyWalk {
  TileRow rows[2][kRows];  // by part of the intervals
  uint8_t seen[2][kRows];  // by buffer: whether any row sees a key of its tile
};

/// The bounds of what the rows of one origin see.
struct Segment {
  int32_t origin;
  Interval keys;

  __device__ bool empty() const { return keys.begin >= keys.end; }
  __device__ int64_t first_tile() const {
    if (origin == kAnyOrigin) return keys.begin;
    return origin + (keys.begin - origin) / kRows * kRows;
  }
};

/// The segment with the smallest origin above `after`; empty when there is none.
__device__ inline Segment next_segment(const KeyWalk& walk, int part, int rows, int32_t after) {
  Segment segment{kAnyOrigin, {0, 0}};
  for (int i = 0; i < rows; ++i) {
    const TileRow row = walk.rows[part][i];
    if (row.keys.begin >= row.keys.end || row.origin <= after) continue;
    if (segment.empty() || row.origin < segment.origin) {
      segment = {row.origin, row.keys};
    } else if (row.origin == segment.origin) {
      segment.keys = bounds_of(segment.keys, row.keys);
    }
  }
  return segment;
}

/// The first tile from `key` on of which a row of the segment sees a key, and in walk.seen[buffer]
/// which. All threads of the block, which have left the buffer when it returns such a tile.
__device__ inline int64_t next_seen_tile(KeyWalk& walk, const Segment& segment, int part, int rows,
                                         int64_t key, int buffer) {
  for (; key < segment.keys.end; key += kRows) {
    bool seen = false;
    if (threadIdx.x < kRows) {
      // The last rows of causal masks see the most.
      for (int i = rows - 1; i >= 0 && !seen; --i) {
        seen = walk.rows[part][i].keys_of(segment.origin).sees(key + threadIdx.x);
      }
      walk.seen[buffer][threadIdx.x] = seen ? 1 : 0;
    }
    if (__syncthreads_or(seen ? 1 : 0) != 0) break;
  }
  return key;
}

/// Places of a tile's keys. Those that no row sees have none: they may hold anything, and a weight
/// of zero times a NaN is no zero.
struct SeenKeyPlaces {
  const ConstRows& x;
  const uint8_t* seen;
  int64_t first, head;

  __device__ int64_t operator()(int i) const {
    return seen[i] != 0 ? row_offset(x, first + i, head) : -1;
  }
};

/// Calls use(key, buffer) for each tile of keys that a segment's rows see, after copy(key, buffer)
/// has brought it to one of two buffers while the last one was used. All threads of the block.
template <class Copy, class Use>
__device__ inline void walk_keys(KeyWalk& walk, const Segment& segment, int part, int rows,
                                 Copy copy, Use use) {
  int64_t key = next_seen_tile(walk, segment, part, rows, segment.first_tile(), 0);
  copy(key, 0);
  commit_copies();
  for (int buffer = 0; key < segment.keys.end; buffer ^= 1) {
    const int64_t next = next_seen_tile(walk, segment, part, rows, key + kRows, buffer ^ 1);
    if (next < segment.keys.end) copy(next, buffer ^ 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    use(key, buffer);
    key = next;
  }
}

/// More heads to a key head than that take the plain path.
constexpr int64_t kTensorCoreGroupMax = kRows;

/// Whether an operand can be copied 16 bytes at a time and multiplied on tensor cores.
inline bool is_tensor_core_operand(const ConstRows& x) {
  return x.dtype == DType::kBf16 && (x.columns == 64 || x.columns == 96 || x.columns == 128) &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.row_stride % 8 == 0 &&
         x.head_stride % 8 == 0;
}

}  // namespace percheron::cuda
