// Matrix products in f32 over weights packed in panels of columns.
//
// A product is cut into tiles of rows by panels; a tile runs through the depth in blocks, so that a
// panel's block stays in the first cache and the rows' block in the second. An element's sum over
// the depth is always taken in the same blocks and order: its bits depend neither on the number of
// rows nor on the team. Source: Goto and van de Geijn 2008.

#include <omp.h>

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/microkernel.h"
#include "kernels/cpu/parallel.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

constexpr int64_t kTileRows = 192;
constexpr int64_t kTilePanels = 256 / kPanel;
constexpr int64_t kDepthMax = kPanel == 32 ? 192 : 256;
/// Row strides are odd multiples of a cache line: a power of two would put a column in one set.
constexpr int64_t kRowsStride = kDepthMax + 16;
constexpr int64_t kTileStride = kTilePanels * kPanel + 16;
/// Depth of a block of a weight's gradient, where both sides are copied.
constexpr int64_t kGradientDepth = 128;
constexpr int64_t kTasksPerThread = 4;
/// Up to here widening a bf16 panel once per strip is cheaper than storing it widened.
constexpr int64_t kFewRows = 2 * kStrip;

/// A thread's scratch.
struct Scratch {
  alignas(64) float rows[kTileRows * kRowsStride];  // or [kGradientDepth, kTileRows]
  alignas(64) float tile[kTileRows * kTileStride];
  alignas(64) float panels[kGradientDepth * kTilePanels * kPanel];  // or [kDepthMax, kPanel]
};
static_assert(kGradientDepth <= kRowsStride && kDepthMax <= kGradientDepth * kTilePanels);

/// Blocks of equal size, a multiple of 8, that depend on the depth only.
PERCHERON_INLINE int64_t depth_block(int64_t depth) {
  const int64_t blocks = (depth + kDepthMax - 1) / kDepthMax;
  return smaller(kDepthMax, ((depth + blocks - 1) / blocks + 7) / 8 * 8);
}

/// How many panels a tile has, so that every thread gets a few tiles.
inline int64_t tile_panels(int64_t panels, int64_t row_tiles) {
  const int64_t tasks = kTasksPerThread * omp_get_max_threads();
  const int64_t wanted = (panels * row_tiles + tasks - 1) / tasks;
  return smaller(kTilePanels, larger<int64_t>(2, wanted));
}

/// tile[rows, panels] (+)= a's rows times the panels' block.
template <int Panels, class B>
PERCHERON_INLINE void multiply_strips(int64_t rows, const float* a, int64_t a_row, int64_t a_step,
                                      const B* b, int64_t b_panel, int64_t depth, Write write,
                                      float* tile) {
  for_strips(rows, [&](int64_t row, auto count) {
    Block<count.value, Panels> block;
    block.clear();
    block.multiply(a + row * a_row, a_row, a_step, b, b_panel, depth);
    float* out = tile + row * kTileStride;
    if (write == Write::kOverwrite) {
      block.store_to(out, kTileStride);
    } else {
      block.add_to(out, kTileStride);
    }
  });
}

/// Asks for a piece of a row some rows ahead: pieces of wide rows lie too far apart for the
/// processor to foresee them.
template <class X>
PERCHERON_INLINE void prefetch_piece(const X* x, int64_t count) {
  constexpr int64_t kLineElements = 64 / sizeof(X);
  for (int64_t i = 0; i < count; i += kLineElements) __builtin_prefetch(x + i);
}
constexpr int64_t kRowsAhead = 6;

/// out (+)= tile + bias, for the columns that exist.
template <class Y>
void write_tile(const float* tile, const float* bias, Write write, int64_t rows, int64_t columns,
                Y* out, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    Y* row = out + r * stride;
    for_lanes(columns, [&](int64_t i, auto width) {
      Vec v = load(tile + r * kTileStride + i, width);
      if (bias != nullptr) v += load(bias + i, width);
      if (write == Write::kAdd) v += load(row + i, width);
      store(row + i, v, width);
    });
  }
}

/// The rows' block [rows, depth] as f32, in place where that is what it is.
template <class X>
PERCHERON_INLINE const float* rows_block(const X* x, int64_t stride, int64_t rows, int64_t depth,
                                         float* scratch, int64_t* block_stride) {
  if constexpr (std::is_same_v<X, float>) {
    *block_stride = stride;
    if (stride % 1024 != 0 || rows == 1) return x;
  }
  for (int64_t r = 0; r < rows; ++r) {
    if (r + kRowsAhead < rows) prefetch_piece(x + (r + kRowsAhead) * stride, depth);
    for_lanes(depth, [&](int64_t i, auto width) {
      store(scratch + r * kRowsStride + i, load(x + r * stride + i, width), width);
    });
  }
  *block_stride = kRowsStride;
  return scratch;
}

/// tile[Rows, kPanel] = x times a bf16 panel, read once from its begin to its end. Two columns lie
/// in 32 bits: even and odd ones are summed apart and brought together at the end. Sums run as
/// those of Block::multiply() do.
template <int Rows>
PERCHERON_INLINE void multiply_panel(const float* x, int64_t x_row, const Bf16* panel,
                                     int64_t depth, int64_t step, float* tile) {
  constexpr int64_t kBytesAhead = 2048;
  Vec sum[Rows][2] = {};
  for (int64_t begin = 0; begin < depth; begin += step) {
    Vec even[Rows] = {}, odd[Rows] = {};
    const int64_t end = smaller(begin + step, depth);
    for (int64_t i = begin; i < end; ++i, panel += kPanel) {
      __builtin_prefetch(reinterpret_cast<const char*>(panel) + kBytesAhead);
      const UintVec pairs = load_raw<UintVec>(panel);
      const Vec low = bits_to_float(pairs << 16), high = bits_to_float(pairs & 0xffff0000u);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const Vec factor = splat(x[r * x_row + i]);
        even[r] += factor * low;
        odd[r] += factor * high;
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      sum[r][0] = begin == 0 ? even[r] : sum[r][0] + even[r];
      sum[r][1] = begin == 0 ? odd[r] : sum[r][1] + odd[r];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) interleave(sum[r][0], sum[r][1], tile + r * kTileStride);
}

/// As product_tile() for few f32 rows and bf16 panels, which are bound by reading the weight.
PERCHERON_INLINE void few_rows_tile(const Product& a, int64_t row, int64_t rows, int64_t first,
                                    int64_t panels, float* tile) {
  const int64_t depth = a.x.columns, step = depth_block(depth), stride = a.x.row_stride;
  const float* x = row_of<float>(a.x, row);
  for (int64_t p = 0; p < panels; ++p) {
    const Bf16* panel = static_cast<const Bf16*>(a.panels) + (first + p) * depth * kPanel;
    for_small_strips(rows, [&](int64_t r, auto count) {
      multiply_panel<count.value>(x + r * stride, stride, panel, depth, step,
                                  tile + r * kTileStride + p * kPanel);
    });
  }
}

template <class B>
void product_tile(const Product& a, int64_t row, int64_t rows, int64_t first, int64_t panels,
                  Scratch& scratch) {
  const int64_t depth_all = a.x.columns, step = depth_block(depth_all);
  const int64_t panel_size = depth_all * kPanel;
  const bool few = rows <= kFewRows && std::is_same_v<B, Bf16> && a.x.dtype == DType::kF32;
  if (few) few_rows_tile(a, row, rows, first, panels, scratch.tile);
  for (int64_t begin = 0; begin < depth_all && !few; begin += step) {
    const int64_t depth = smaller(step, depth_all - begin);
    const Write write = begin == 0 ? Write::kOverwrite : Write::kAdd;
    const float* x = nullptr;
    int64_t stride = 0;
    with_activation(a.x.dtype, [&](auto* type) {
      const auto* source = row_of<Pointee<decltype(type)>>(a.x, row) + begin;
      x = rows_block(source, a.x.row_stride, rows, depth, scratch.rows, &stride);
    });
    int64_t p = 0;
    if (rows <= kFewRows) {
      // Few rows: bound by reading the weight; two panels at once hide the latency of the sums.
      for (; p + 2 <= panels; p += 2) {
        const B* b = static_cast<const B*>(a.panels) + (first + p) * panel_size + begin * kPanel;
        for (int64_t r = 0; r < rows; r += 2) {
          float* out = scratch.tile + r * kTileStride + p * kPanel;
          multiply_strips<2>(smaller<int64_t>(2, rows - r), x + r * stride, stride, 1, b,
                             panel_size, depth, write, out);
        }
      }
    }
    for (; p < panels; ++p) {
      const B* b = static_cast<const B*>(a.panels) + (first + p) * panel_size + begin * kPanel;
      float* out = scratch.tile + p * kPanel;
      if constexpr (std::is_same_v<B, float>) {
        multiply_strips<1>(rows, x, stride, 1, b, 0, depth, write, out);
      } else if (rows <= kFewRows) {
        multiply_strips<1>(rows, x, stride, 1, b, 0, depth, write, out);
      } else {
        for (int64_t i = 0; i < depth * kPanel; i += kLanes) {
          store(scratch.panels + i, load(b + i, Full{}), Full{});
        }
        multiply_strips<1>(rows, x, stride, 1, scratch.panels, 0, depth, write, out);
      }
    }
  }
  const int64_t column = first * kPanel;
  with_activation(a.y.dtype, [&](auto* type) {
    auto* y = row_of<Pointee<decltype(type)>>(a.y, row) + column;
    write_tile(scratch.tile, a.bias == nullptr ? nullptr : a.bias + column, a.write, rows,
               smaller(panels * kPanel, a.y.columns - column), y, a.y.row_stride);
  });
}

/// Rows [depth, columns] as f32 panels of `width` columns, [panel, depth, width], the last padded
/// with zeros. Reads row by row, as they lie.
template <int64_t Width, class X>
PERCHERON_INLINE void copy_panels(const X* x, int64_t stride, int64_t depth, int64_t columns,
                                  float* out) {
  for (int64_t i = 0; i < depth; ++i) {
    if (i + kRowsAhead < depth) prefetch_piece(x + (i + kRowsAhead) * stride, columns);
    for (int64_t c = 0; c < columns; c += Width) {
      float* target = out + c * depth + i * Width;
      const int64_t present = smaller(Width, columns - c);
      for_lanes(present, [&](int64_t j, auto width) {
        store(target + j, load(x + i * stride + c + j, width), width);
      });
      for (int64_t j = present; j < Width; ++j) target[j] = 0;
    }
  }
}

template <class G, class X>
void weight_gradient_tile(const WeightGradient& a, int64_t row, int64_t rows, int64_t first,
                          int64_t panels, Scratch& scratch) {
  const int64_t depth_all = a.x.rows, column = first * kPanel;
  const int64_t columns = smaller(panels * kPanel, a.x.columns - column);
  for (int64_t begin = 0; begin < depth_all; begin += kGradientDepth) {
    const int64_t depth = smaller(kGradientDepth, depth_all - begin);
    const Write write = begin == 0 ? Write::kOverwrite : Write::kAdd;
    copy_panels<kTileRows>(row_of<G>(a.dy, begin) + row, a.dy.row_stride, depth, rows,
                           scratch.rows);
    copy_panels<kPanel>(row_of<X>(a.x, begin) + column, a.x.row_stride, depth, columns,
                        scratch.panels);
    for (int64_t p = 0; p < panels; ++p) {
      multiply_strips<1>(rows, scratch.rows, 1, kTileRows, scratch.panels + p * depth * kPanel, 0,
                         depth, write, scratch.tile + p * kPanel);
    }
  }
  write_tile(scratch.tile, nullptr, Write::kAdd, rows, columns,
             row_of<float>(a.dweight, row) + column, a.dweight.row_stride);
}

/// Calls f(row, rows, first panel, panels, scratch) for tiles that cover [rows, columns] once.
/// Which thread takes a tile changes no bit, so that threads may take them as they come.
template <class F>
void for_tiles(int64_t rows, int64_t columns, void* scratch, F&& f) {
  const int64_t panels = (columns + kPanel - 1) / kPanel;
  const int64_t row_tiles = (rows + kTileRows - 1) / kTileRows;
  const int64_t wide = tile_panels(panels, row_tiles);
  const int64_t tiles = row_tiles * ((panels + wide - 1) / wide);
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t row = tile % row_tiles * kTileRows, first = tile / row_tiles * wide;
    f(row, smaller(kTileRows, rows - row), first, smaller(wide, panels - first),
      static_cast<Scratch*>(scratch)[omp_get_thread_num()]);
  }
}

}  // namespace

const int64_t kProductScratchBytes = sizeof(Scratch);
const int64_t kPanelColumns = kPanel;

void pack_panels(const ConstRows& weight, PanelColumns columns, DType dtype, void* panels) {
  const bool are_rows = columns == PanelColumns::kRowsOfWeight;
  const int64_t n = are_rows ? weight.rows : weight.columns;
  const int64_t depth = are_rows ? weight.columns : weight.rows;
  with_float(weight.dtype, [&](auto* weight_type) {
    with_activation(dtype, [&](auto* panel_type) {
      using W = Pointee<decltype(weight_type)>;
      using P = Pointee<decltype(panel_type)>;
      for_rows((n + kPanel - 1) / kPanel, weight.rows * weight.columns, [&](int64_t p) {
        P* out = static_cast<P*>(panels) + p * depth * kPanel;
        const int present = static_cast<int>(smaller<int64_t>(kPanel, n - p * kPanel));
        for (int64_t i = 0; i < depth; ++i, out += kPanel) {
          alignas(64) float row[kPanel] = {};
          for (int j = 0; j < present; ++j) {
            const int64_t column = p * kPanel + j;
            const W* element =
                are_rows ? row_of<W>(weight, column) + i : row_of<W>(weight, i) + column;
            row[j] = load(element, Part{1})[0];
          }
          store(out, load(row, Full{}), Full{});
          store(out + kLanes, load(row + kLanes, Full{}), Full{});
        }
      });
    });
  });
}

void product(const Product& a) {
  for_tiles(a.y.rows, a.y.columns, a.scratch,
            [&](int64_t row, int64_t rows, int64_t first, int64_t panels, Scratch& scratch) {
              if (a.panels_dtype == DType::kF32) {
                product_tile<float>(a, row, rows, first, panels, scratch);
              } else {
                product_tile<Bf16>(a, row, rows, first, panels, scratch);
              }
            });
}

void weight_gradient(const WeightGradient& a) {
  with_activation(a.dy.dtype, [&](auto* dy_type) {
    with_activation(a.x.dtype, [&](auto* x_type) {
      using G = Pointee<decltype(dy_type)>;
      using X = Pointee<decltype(x_type)>;
      for_tiles(a.dweight.rows, a.dweight.columns, a.scratch,
                [&](int64_t row, int64_t rows, int64_t first, int64_t panels, Scratch& scratch) {
                  weight_gradient_tile<G, X>(a, row, rows, first, panels, scratch);
                });
    });
  });
}

}  // namespace percheron::cpu::PERCHERON_ISA
