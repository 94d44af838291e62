// Moving and adding rows.

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"

namespace percheron::cpu::PERCHERON_ISA {

void copy(const ConstRows& x, const Rows& y) {
  with_float(x.dtype, [&](auto* x_type) {
    with_float(y.dtype, [&](auto* y_type) {
      using X = Pointee<decltype(x_type)>;
      using Y = Pointee<decltype(y_type)>;
      for_chunks(x.rows, x.heads, x.columns, [&](int64_t r, int64_t h, int64_t c, int64_t n) {
        const X* source = row_of<X>(x, r, h) + c;
        Y* target = row_of<Y>(y, r, h) + c;
        if constexpr (std::is_same_v<X, Y>) {
          __builtin_memcpy(target, source, static_cast<size_t>(n) * sizeof(X));
        } else {
          for_lanes(
              n, [&](int64_t i, auto width) { store(target + i, load(source + i, width), width); });
        }
      });
    });
  });
}

void add(const ConstRows& x, const Rows& y) {
  with_float(x.dtype, [&](auto* x_type) {
    with_float(y.dtype, [&](auto* y_type) {
      using X = Pointee<decltype(x_type)>;
      using Y = Pointee<decltype(y_type)>;
      for_chunks(x.rows, x.heads, x.columns, [&](int64_t r, int64_t h, int64_t c, int64_t n) {
        const X* source = row_of<X>(x, r, h) + c;
        Y* target = row_of<Y>(y, r, h) + c;
        for_lanes(n, [&](int64_t i, auto width) {
          store(target + i, load(target + i, width) + load(source + i, width), width);
        });
      });
    });
  });
}

void gather_rows(const ConstRows& table, const int32_t* rows, const Rows& out) {
  with_float(table.dtype, [&](auto* table_type) {
    with_activation(out.dtype, [&](auto* out_type) {
      using X = Pointee<decltype(table_type)>;
      using Y = Pointee<decltype(out_type)>;
      for_chunks(out.rows, 1, out.columns, [&](int64_t r, int64_t, int64_t c, int64_t n) {
        Y* target = row_of<Y>(out, r) + c;
        if (rows[r] < 0) {
          __builtin_memset(target, 0, static_cast<size_t>(n) * sizeof(Y));
          return;
        }
        const X* source = row_of<X>(table, rows[r]) + c;
        for_lanes(
            n, [&](int64_t i, auto width) { store(target + i, load(source + i, width), width); });
      });
    });
  });
}

void scatter_add_rows(const ConstRows& x, const int32_t* rows, const Rows& out) {
  with_activation(x.dtype, [&](auto* x_type) {
    using X = Pointee<decltype(x_type)>;
    for_chunks(x.rows, 1, x.columns, [&](int64_t r, int64_t, int64_t c, int64_t n) {
      if (rows[r] < 0) return;
      const X* source = row_of<X>(x, r) + c;
      float* target = row_of<float>(out, rows[r]) + c;
      for_lanes(n, [&](int64_t i, auto width) {
        store(target + i, load(target + i, width) + load(source + i, width), width);
      });
    });
  });
}

}  // namespace percheron::cpu::PERCHERON_ISA
