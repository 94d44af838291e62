#include "kernels/cpu/kernel_table.h"

#include "kernels/cpu/isa_kernels.h"

namespace percheron::cpu::PERCHERON_ISA {

const KernelTable& kernel_table() {
  static constexpr KernelTable kTable = {
      .copy = copy,
      .add = add,
      .gather_rows = gather_rows,
      .scatter_add_rows = scatter_add_rows,
      .add_bias = add_bias,
      .column_sum = column_sum,
      .rms_norm = rms_norm,
      .rms_norm_backward = rms_norm_backward,
      .rotary = rotary,
      .swiglu = swiglu,
      .swiglu_backward = swiglu_backward,
      .attention = attention,
      .attention_backward = attention_backward,
      .cross_entropy = cross_entropy,
      .teacher_loss = teacher_loss,
      .argmax = argmax,
      .squared_norm = squared_norm,
      .adamw = adamw,
      .axpby = axpby,
  };
  return kTable;
}

}  // namespace percheron::cpu::PERCHERON_ISA
