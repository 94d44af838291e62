// Attention with interval masks, forward.

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"

namespace percheron::cpu::PERCHERON_ISA {

void attention(const Attention& a) {
  with_activation(a.q.dtype, [&](auto* q_type) {
    with_activation(a.k.dtype, [&](auto* k_type) {
      with_activation(a.out.dtype, [&](auto* out_type) {
        using Q = Pointee<decltype(q_type)>;
        using K = Pointee<decltype(k_type)>;
        using O = Pointee<decltype(out_type)>;
        const int64_t tasks = a.q.rows * a.k.heads;
#pragma omp parallel for schedule(dynamic, 8)
        for (int64_t task = 0; task < tasks; ++task) {
          attention_row<Q, K, O>(a, task / a.k.heads, task % a.k.heads);
        }
      });
    });
  });
}

}  // namespace percheron::cpu::PERCHERON_ISA
