#pragma once

// How attention cuts its query rows into tiles, and a tile's rows into panels. Only for sources
// compiled once per instruction set.
//
// A tile's rows share the begin of their first interval, from which its keys are counted, and its
// bounds depend on the intervals of its own document only. Therefore a row's sums are taken in the
// same order wherever its document lies in a pack.

#include "kernels/cpu/microkernel.h"
#include "kernels/cpu/shuffle.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr double kLn2 = 0.693147180559945309;

constexpr int64_t kTileRowsMax = 64;
/// A tile's lanes: its rows times the query heads that share a key head.
constexpr int64_t kTileLanesMax = 256;
static_assert(kHeadsPerKeyHeadMax <= kTileLanesMax, "a tile holds at least one row");
/// Keys are taken in tiles of this size.
constexpr int64_t kKeyTile = 128;
/// From here on rows with the same second interval are worth a tile of their own.
constexpr int64_t kSharedRowsMin = 8;

struct Interval {
  int32_t begin, end;
};
/// The part-th interval of a row; {0, 0} if it is empty.
PERCHERON_INLINE Interval interval_of(const int32_t* intervals, int64_t row, int part) {
  const int32_t* p = intervals + row * 4 + 2 * part;
  return p[0] < p[1] ? Interval{p[0], p[1]} : Interval{0, 0};
}

/// Grows from rows' intervals as long as they begin at the same key; empty ones fit everywhere.
struct Begin {
  int32_t key = -1;
  PERCHERON_INLINE bool accepts(Interval interval) {
    if (interval.begin == interval.end) return true;
    if (key < 0) key = interval.begin;
    return key == interval.begin;
  }
};

inline int64_t tile_rows_max(int64_t group) {
  return larger<int64_t>(1, smaller(kTileRowsMax, kTileLanesMax / group));
}

inline RowTile tile_from(const int32_t* intervals, int64_t row, int64_t end_max) {
  Begin first, first_of_both, second;
  int64_t end = row, both_end = row;
  while (end < end_max && first.accepts(interval_of(intervals, end, 0))) ++end;
  while (both_end < end && first_of_both.accepts(interval_of(intervals, both_end, 0)) &&
         second.accepts(interval_of(intervals, both_end, 1))) {
    ++both_end;
  }
  const bool shared = both_end == end || both_end - row >= kSharedRowsMin;
  if (shared) end = both_end;
  RowTile tile{static_cast<int32_t>(row), static_cast<int32_t>(end), 0, 0, 0, 0, shared};
  for (int64_t r = row; r < end; ++r) {
    const Interval a = interval_of(intervals, r, 0), b = interval_of(intervals, r, 1);
    if (a.end > 0) tile.first_begin = a.begin;
    tile.first_end = larger(tile.first_end, a.end);
    if (b.end > 0) {
      tile.second_begin = tile.second_end == 0 ? b.begin : smaller(tile.second_begin, b.begin);
    }
    tile.second_end = larger(tile.second_end, b.end);
  }
  return tile;
}

/// Writes the tiles of all rows; returns how many.
inline int64_t plan_tiles(const int32_t* intervals, int64_t rows, int64_t group, RowTile* tiles) {
  const int64_t rows_max = tile_rows_max(group);
  int64_t count = 0;
  for (int64_t row = 0; row < rows; row = tiles[count++].end) {
    tiles[count] = tile_from(intervals, row, smaller(rows, row + rows_max));
  }
  return count;
}

/// The lanes of a tile and key head: head by head, within a head the rows in order.
struct TileLanes {
  int64_t first_row, rows, first_head, lanes;

  TileLanes(const RowTile& tile, int64_t kv_head, int64_t group)
      : first_row(tile.begin),
        rows(tile.end - tile.begin),
        first_head(kv_head * group),
        lanes(rows * group) {}
  int64_t panels() const { return (lanes + kPanel - 1) / kPanel; }
  int64_t row(int64_t lane) const { return first_row + lane % rows; }
  int64_t head(int64_t lane) const { return first_head + lane / rows; }
};

/// out[panel][d][lane] = x's row of the lane, times `factor`; lanes past the last are zero.
template <class X>
void transpose_in(const ConstRows& x, const TileLanes& lanes, float factor, float* out) {
  const int64_t d = x.columns;
  for (int64_t lane = 0; lane < lanes.panels() * kPanel; lane += kLanes) {
    const X* source[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const bool present = lane + i < lanes.lanes;
      source[i] = present ? row_of<X>(x, lanes.row(lane + i), lanes.head(lane + i)) : nullptr;
    }
    float* target = out + lane / kPanel * kPanel * d + lane % kPanel;
    for_lanes(d, [&](int64_t c, auto width) {
      Vec square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        square[i] = source[i] == nullptr ? Vec{} : load(source[i] + c, width) * factor;
      }
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if (i < width.count) store(target + (c + i) * kPanel, square[i], Full{});
      }
    });
  }
}

/// rows[lane][d] = x[panel][d][lane], the way back; rows have the stride d rounded up to a
/// register.
inline void transpose_out(const float* x, int64_t panels, int64_t d, float* rows) {
  const int64_t stride = (d + kLanes - 1) / kLanes * kLanes;
  for (int64_t lane = 0; lane < panels * kPanel; lane += kLanes) {
    const float* source = x + lane / kPanel * kPanel * d + lane % kPanel;
    for (int64_t c = 0; c < d; c += kLanes) {
      Vec square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        square[i] = c + i < d ? load(source + (c + i) * kPanel, Full{}) : Vec{};
      }
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(rows + (lane + i) * stride + c, square[i], Full{});
    }
  }
}

/// A block of rows of one head as f32: in place, or widened into scratch.
struct F32Rows {
  const float* data;
  int64_t stride;
};
template <class X>
PERCHERON_INLINE F32Rows f32_rows(const ConstRows& x, int64_t begin, int64_t count, int64_t head,
                                  float* scratch) {
  if constexpr (std::is_same_v<X, float>) {
    return {row_of<float>(x, begin, head), x.row_stride};
  } else {
    const int64_t stride = (x.columns + kLanes - 1) / kLanes * kLanes;
    for (int64_t r = 0; r < count; ++r) {
      const X* row = row_of<X>(x, begin + r, head);
      for_lanes(x.columns, [&](int64_t i, auto width) {
        store(scratch + r * stride + i, load(row + i, width), width);
      });
    }
    return {scratch, stride};
  }
}

/// Hands out pieces of a thread's scratch, each aligned to a cache line.
class Pieces {
 public:
  explicit Pieces(float* begin) : next_(begin) {}
  float* take(int64_t floats) {
    float* piece = next_;
    next_ += (floats + 15) / 16 * 16;
    return piece;
  }

 private:
  float* next_;
};

}  // namespace
}  // namespace percheron::cpu::PERCHERON_ISA
