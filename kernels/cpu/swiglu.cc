// silu(gate) * up and its gradient.

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"

namespace percheron::cpu::PERCHERON_ISA {

void swiglu(const ConstRows& gate_up, const Rows& out) {
  with_activation(gate_up.dtype, [&](auto* x_type) {
    with_activation(out.dtype, [&](auto* out_type) {
      using X = Pointee<decltype(x_type)>;
      using Y = Pointee<decltype(out_type)>;
      for_chunks(out.rows, 1, out.columns, [&](int64_t r, int64_t, int64_t c, int64_t n) {
        const X* gate = row_of<X>(gate_up, r) + c;
        const X* up = gate + out.columns;
        Y* target = row_of<Y>(out, r) + c;
        for_lanes(n, [&](int64_t i, auto width) {
          const Vec g = load(gate + i, width);
          store(target + i, g * sigmoid(g) * load(up + i, width), width);
        });
      });
    });
  });
}

void swiglu_backward(const ConstRows& dout, const ConstRows& gate_up, const Rows& dgate_up) {
  with_activation(dout.dtype, [&](auto* dout_type) {
    with_activation(gate_up.dtype, [&](auto* x_type) {
      with_activation(dgate_up.dtype, [&](auto* d_type) {
        using G = Pointee<decltype(dout_type)>;
        using X = Pointee<decltype(x_type)>;
        using D = Pointee<decltype(d_type)>;
        for_chunks(dout.rows, 1, dout.columns, [&](int64_t r, int64_t, int64_t c, int64_t n) {
          const G* d = row_of<G>(dout, r) + c;
          const X* gate = row_of<X>(gate_up, r) + c;
          const X* up = gate + dout.columns;
          D* dgate = row_of<D>(dgate_up, r) + c;
          D* dup = dgate + dout.columns;
          for_lanes(n, [&](int64_t i, auto width) {
            const Vec dy = load(d + i, width), g = load(gate + i, width);
            const Vec s = sigmoid(g);
            const Vec u = load(up + i, width);
            store(dup + i, dy * g * s, width);
            store(dgate + i, dy * u * s * (1.f + g * (1.f - s)), width);
          });
        });
      });
    });
  });
}

}  // namespace percheron::cpu::PERCHERON_ISA
