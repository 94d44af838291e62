#include "kernels/cpu/kernel_table.h"

#include "kernels/cpu/isa_kernels.h"

namespace percheron::cpu::PERCHERON_ISA {

const KernelTable& kernel_table() {
  static const KernelTable kTable = {
      .copy = copy,
      .add = add,
      .gather_rows = gather_rows,
      .scatter_add_rows = scatter_add_rows,
      .panel_columns = kPanelColumns,
      .product_scratch_bytes = kProductScratchBytes,
      .pack_panels = pack_panels,
      .product = product,
      .weight_gradient = weight_gradient,
#ifdef __AVX512BF16__
      .bf16_pairs_bytes = bf16_pairs_bytes,
      .pack_bf16_pairs = pack_bf16_pairs,
      .few_bf16_rows_product = few_bf16_rows_product,
#else
      .bf16_pairs_bytes = nullptr,
      .pack_bf16_pairs = nullptr,
      .few_bf16_rows_product = nullptr,
#endif
      .quantize_rows = quantize_rows,
      .dequantize_rows = dequantize_rows,
      .rms_norm = rms_norm,
      .rms_norm_backward = rms_norm_backward,
      .rotary = rotary,
      .swiglu = swiglu,
      .swiglu_backward = swiglu_backward,
      .attention_scratch_floats = attention_scratch_floats,
      .attention = attention,
      .attention_backward_scratch_floats = attention_backward_scratch_floats,
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
