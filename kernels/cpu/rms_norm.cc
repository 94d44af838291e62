// Root mean square normalisation of rows, or of each head of a row.

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

template <class X>
PERCHERON_INLINE float sum_of_squares(const X* x, int64_t n) {
  Vec sum[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const Vec v = load(x + i + j * kLanes, Full{});
      sum[j] += v * v;
    }
  }
  for_lanes(n - i, [&](int64_t j, auto width) {
    const Vec v = load(x + i + j, width);
    sum[0] += v * v;
  });
  return sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <class X, class Y>
void normalize(const X* x, const float* weight, float inverse_rms, int64_t n, Y* out) {
  for_lanes(n, [&](int64_t i, auto width) {
    const Vec unit = rounded_to(load(x + i, width) * inverse_rms, out);
    store(out + i, unit * load(weight + i, width), width);
  });
}

/// One row: dx (+)= inverse_rms (w dy - unit mean(w dy unit)), and dweight_partial += dy unit.
template <class G, class X, class D>
void backward_row(const G* dy, const X* x, const float* weight, float inverse_rms, Write write,
                  int64_t n, D* dx, float* dweight_partial) {
  Vec dot = {};
  for_lanes(n, [&](int64_t i, auto width) {
    const Vec dy_unit = load(dy + i, width) * (load(x + i, width) * inverse_rms);
    dot += dy_unit * load(weight + i, width);
    if (dweight_partial != nullptr) {
      store(dweight_partial + i, load(dweight_partial + i, width) + dy_unit, width);
    }
  });
  const float mean = sum_lanes(dot) / static_cast<float>(n);
  for_lanes(n, [&](int64_t i, auto width) {
    const Vec unit = load(x + i, width) * inverse_rms;
    Vec d = (load(dy + i, width) * load(weight + i, width) - unit * mean) * inverse_rms;
    if (write == Write::kAdd) d += load(dx + i, width);
    store(dx + i, d, width);
  });
}

}  // namespace

void rms_norm(const ConstRows& x, const float* weight, float epsilon, const Rows& out,
              float* inverse_rms) {
  with_activation(x.dtype, [&](auto* x_type) {
    with_activation(out.dtype, [&](auto* out_type) {
      using X = Pointee<decltype(x_type)>;
      using Y = Pointee<decltype(out_type)>;
      for_rows(x.rows, x.rows * x.heads * x.columns, [&](int64_t r) {
        for (int64_t h = 0; h < x.heads; ++h) {
          const X* row = row_of<X>(x, r, h);
          const float mean = sum_of_squares(row, x.columns) / static_cast<float>(x.columns);
          const float inverse = 1.f / __builtin_sqrtf(mean + epsilon);
          normalize(row, weight, inverse, x.columns, row_of<Y>(out, r, h));
          if (inverse_rms != nullptr) inverse_rms[r * x.heads + h] = inverse;
        }
      });
    });
  });
}

void rms_norm_backward(const RmsNormBackward& a) {
  const int64_t columns = a.x.columns;
  const RowBlocks blocks = row_blocks(a.x.rows);
  with_activation(a.dy.dtype, [&](auto* dy_type) {
    with_activation(a.x.dtype, [&](auto* x_type) {
      with_activation(a.dx.dtype, [&](auto* dx_type) {
        using G = Pointee<decltype(dy_type)>;
        using X = Pointee<decltype(x_type)>;
        using D = Pointee<decltype(dx_type)>;
        for_rows(blocks.count, a.x.rows * a.x.heads * columns, [&](int64_t block) {
          float* partial = nullptr;
          if (a.dweight != nullptr) {
            partial = a.dweight_partial + block * columns;
            __builtin_memset(partial, 0, static_cast<size_t>(columns) * sizeof(float));
          }
          const int64_t begin = block * blocks.block_rows;
          const int64_t end = smaller(a.x.rows, begin + blocks.block_rows);
          for (int64_t r = begin; r < end; ++r) {
            for (int64_t h = 0; h < a.x.heads; ++h) {
              backward_row(row_of<G>(a.dy, r, h), row_of<X>(a.x, r, h), a.weight,
                           a.inverse_rms[r * a.x.heads + h], a.write, columns,
                           row_of<D>(a.dx, r, h), partial);
            }
          }
        });
      });
    });
  });
  if (a.dweight != nullptr) add_partials(a.dweight_partial, blocks.count, columns, a.dweight);
}

}  // namespace percheron::cpu::PERCHERON_ISA
