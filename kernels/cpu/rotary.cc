// Rotary position embedding in the rotate-half layout.

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"

namespace percheron::cpu::PERCHERON_ISA {

void rotary(const Rows& x, const int32_t* positions, const float* cos, const float* sin,
            float sign) {
  const int64_t half = x.columns / 2;
  with_activation(x.dtype, [&](auto* x_type) {
    using X = Pointee<decltype(x_type)>;
    for_rows(x.rows, x.rows * x.heads * x.columns, [&](int64_t r) {
      const float* row_cos = cos + positions[r] * half;
      const float* row_sin = sin + positions[r] * half;
      for (int64_t h = 0; h < x.heads; ++h) {
        X* first = row_of<X>(x, r, h);
        X* second = first + half;
        for_lanes(half, [&](int64_t i, auto width) {
          const Vec c = load(row_cos + i, width), s = load(row_sin + i, width) * sign;
          const Vec a = load(first + i, width), b = load(second + i, width);
          store(first + i, a * c - b * s, width);
          store(second + i, b * c + a * s, width);
        });
      }
    });
  });
}

}  // namespace percheron::cpu::PERCHERON_ISA
