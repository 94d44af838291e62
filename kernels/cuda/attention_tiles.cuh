#pragma once

// What the attention kernels of the plain path share: tiles of query lanes and of keys, and their
// products, for any even head_dim and any float types.
//
// A query lane is a row and one of the query heads that share a key head: lane = row * group +
// head. Bits must not depend on where a tile begins, that is, on what lies before a document in its
// pack. Therefore each sum runs over its keys (or lanes) one after the other, in their order, and
// the softmax subtracts the row's largest score, which is found before the first exponential.
// Masked elements are left out of sums, not added as zero: keys that a row does not see may hold
// anything.

#include "kernels/cuda/elements.cuh"

namespace percheron::cuda {

constexpr int kTile = 32;   // lanes, and keys, of a tile
constexpr int kChunk = 64;  // columns of heads that are in shared memory at a time
/// With a least number of blocks in their launch bounds the compiler takes the registers that it
/// needs and does not spill to fit in another block.
constexpr int kTileThreads = 256;
/// Threads that share a lane, or in the gradient of keys a key.
constexpr int kParts = kTileThreads / kTile;
constexpr int kKeysEach = kTile / kParts;
constexpr int kColumnsEach = kChunk / kParts;

// The odd strides keep the threads of a warp on different banks.
using ColumnTile = float[kTile][kChunk + 1];
using ScoreTile = float[kTile][kTile + 1];

struct Interval {
  int32_t begin, end;

  __device__ bool sees(int64_t key) const { return begin <= key && key < end; }
  __device__ bool overlaps(int64_t first, int64_t count) const {
    return begin < end && begin < first + count && first < end;
  }
};

/// The part-th interval of a row; empty ones are {0, 0}.
__device__ inline Interval interval_of(const int32_t* intervals, int64_t row, int part) {
  const Interval i{intervals[row * 4 + 2 * part], intervals[row * 4 + 2 * part + 1]};
  return i.begin < i.end ? i : Interval{0, 0};
}

/// The two intervals of a row, or the bounds of those of several rows.
struct Intervals {
  Interval first, second;

  /// By a condition, not an index, which would put the object into local memory.
  __device__ Interval at(int part) const { return part == 0 ? first : second; }
};

/// The query lane of a thread.
struct Lane {
  bool valid;  // false past the last lane
  int64_t row, head;
  Intervals intervals;
};

__device__ inline int tile_index() { return static_cast<int>(threadIdx.x) / kParts; }
__device__ inline int part_index() { return static_cast<int>(threadIdx.x) % kParts; }

__device__ inline Lane lane_at(int64_t lane, int64_t kv_head, int64_t group, int64_t rows,
                               const int32_t* intervals) {
  const int64_t row = lane / group, head = kv_head * group + lane % group;
  if (row >= rows) return {false, 0, 0, {{0, 0}, {0, 0}}};
  return {true, row, head, {interval_of(intervals, row, 0), interval_of(intervals, row, 1)}};
}

/// Columns [chunk * kChunk, ...) of kTile rows into shared memory, zero past the ends. place(i)
/// gives row i's offset in x, negative if there is none. No barrier.
template <class Place>
__device__ inline void load_tile(ColumnTile& tile, const ConstRows& x, int chunk, Place place) {
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kChunk; i += kTileThreads) {
    const int row = i / kChunk, column = i % kChunk;
    const int64_t offset = place(row), at = static_cast<int64_t>(chunk) * kChunk + column;
    tile[row][column] = offset >= 0 && at < x.columns ? load(x, offset + at) : 0.f;
  }
}

/// Places of the lanes from `first` on, and of the keys from `first` on.
struct LanePlaces {
  const ConstRows& x;
  int64_t first, kv_head, group;

  __device__ int64_t operator()(int i) const {
    const int64_t row = (first + i) / group;
    return row < x.rows ? row_offset(x, row, kv_head * group + (first + i) % group) : -1;
  }
};
struct KeyPlaces {
  const ConstRows& x;
  int64_t first, head;

  __device__ int64_t operator()(int i) const {
    return first + i < x.rows ? row_offset(x, first + i, head) : -1;
  }
};

/// products[j] = row tile_index() of a . row part_index() + kParts j of b. All threads of the
/// block.
template <int Chunks, class PlaceA, class PlaceB>
__device__ inline void multiply_tiles(ColumnTile& a_tile, ColumnTile& b_tile, const ConstRows& a,
                                      PlaceA a_place, const ConstRows& b, PlaceB b_place,
                                      float (&products)[kKeysEach]) {
#pragma unroll
  for (int j = 0; j < kKeysEach; ++j) products[j] = 0;
#pragma unroll 1
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    load_tile(a_tile, a, chunk, a_place);
    load_tile(b_tile, b, chunk, b_place);
    __syncthreads();
#pragma unroll 4
    for (int c = 0; c < kChunk; ++c) {
      const float value = a_tile[tile_index()][c];
#pragma unroll
      for (int j = 0; j < kKeysEach; ++j) {
        products[j] += value * b_tile[part_index() + kParts * j][c];
      }
    }
    __syncthreads();
  }
}

/// A thread's columns of one row of a result.
template <int Chunks>
struct Accumulator {
  float at[Chunks][kColumnsEach];

  __device__ void clear() {
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
#pragma unroll
      for (int j = 0; j < kColumnsEach; ++j) at[chunk][j] = 0;
    }
  }
  /// Adds factor times a row of columns that lies in shared memory.
  __device__ void add(int chunk, float factor, const float* row) {
#pragma unroll
    for (int j = 0; j < kColumnsEach; ++j) at[chunk][j] += factor * row[part_index() + kParts * j];
  }
  /// Calls f(column, value) for the thread's columns below `columns`.
  template <class F>
  __device__ void each(int64_t columns, F f) const {
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
#pragma unroll
      for (int j = 0; j < kColumnsEach; ++j) {
        const int64_t column = chunk * kChunk + part_index() + kParts * j;
        if (column < columns) f(column, at[chunk][j]);
      }
    }
  }
};

/// The smallest interval that holds both.
__device__ inline Interval bounds_of(Interval a, Interval b) {
  if (a.begin == a.end) return b;
  if (b.begin == b.end) return a;
  return {a.begin < b.begin ? a.begin : b.begin, a.end > b.end ? a.end : b.end};
}

/// The bounds of the intervals of a tile's lanes. All threads of the block; each brings its lane.
__device__ inline Intervals tile_bounds(const Lane& lane) {
  using All = Intervals[kTile];
  PERCHERON_SHARED(All, all);
  if (part_index() == 0) all[tile_index()] = lane.intervals;
  __syncthreads();
  Intervals bounds{{0, 0}, {0, 0}};
#pragma unroll 1
  for (int i = 0; i < kTile; ++i) {
    bounds.first = bounds_of(bounds.first, all[i].first);
    bounds.second = bounds_of(bounds.second, all[i].second);
  }
  return bounds;
}

/// Calls f(part, key) for every tile of keys, from `key` on, that a lane of the tile sees in its
/// part-th interval. All threads of the block.
template <class F>
__device__ inline void for_key_tiles(const Lane& lane, const Intervals& bounds, F f) {
#pragma unroll 1
  for (int part = 0; part < 2; ++part) {
    const Interval all = bounds.at(part), mine = lane.intervals.at(part);
#pragma unroll 1
    for (int64_t key = all.begin; key < all.end; key += kTile) {
      if (__syncthreads_or(mine.overlaps(key, kTile) ? 1 : 0) != 0) f(part, key);
    }
  }
}

/// Chunks that a head needs: the kernels are compiled for 1, 2 and 4.
inline int chunks_of(int64_t head_dim) {
  const int64_t chunks = (head_dim + kChunk - 1) / kChunk;
  return chunks <= 2 ? static_cast<int>(chunks) : 4;
}

}  // namespace percheron::cuda
