#pragma once

// The kernels of one instruction set, each in the source that is named after its idea;
// kernel_table.cc collects them. Their contracts are those of kernels/ops.h.

#include "kernels/cpu/kernel_table.h"

namespace percheron::cpu::PERCHERON_ISA {

void copy(const ConstRows& x, const Rows& y);
void add(const ConstRows& x, const Rows& y);
void gather_rows(const ConstRows& table, const int32_t* rows, const Rows& out);
void scatter_add_rows(const ConstRows& x, const int32_t* rows, const Rows& out);

extern const int64_t kPanelColumns;
extern const int64_t kProductScratchBytes;
void pack_panels(const ConstRows& weight, PanelColumns columns, DType dtype, void* panels);
void product(const Product& a);
void weight_gradient(const WeightGradient& a);
#ifdef __AVX512BF16__
int64_t bf16_pairs_bytes(int64_t columns, int64_t depth);
void pack_bf16_pairs(const ConstRows& weight, void* pairs);
void few_bf16_rows_product(const Product& a);
#endif

void quantize_rows(const ConstRows& weight, int64_t first_column, float* scales, const Rows& codes);
void dequantize_rows(const ConstRows& codes, const float* scales, const Rows& out);

void rms_norm(const ConstRows& x, const float* weight, float epsilon, const Rows& out,
              float* inverse_rms);
void rms_norm_backward(const RmsNormBackward& a);
void rotary(const Rows& x, const int32_t* positions, const float* cos, const float* sin,
            float sign);
void swiglu(const ConstRows& gate_up, const Rows& out);
void swiglu_backward(const ConstRows& dout, const ConstRows& gate_up, const Rows& dgate_up);
int64_t attention_scratch_floats(const AttentionShape& shape);
void attention(const Attention& a);
int64_t attention_backward_scratch_floats(const AttentionShape& shape);
void attention_backward(const AttentionBackward& a);

void cross_entropy(const Rows& logits, const int32_t* labels, const float* weights,
                   Gradient gradient, float* loss, int32_t* argmax);
void teacher_loss(const TeacherLossRows& a);
void argmax(const ConstRows& x, int32_t* out);

void squared_norm(const ConstRows& x, double* partial, double* sum);
void adamw(const AdamWSettings& settings, float scale, const float* g, float* p, float* m, float* v,
           int64_t n);
void axpby(float a, const float* x, float b, float* y, int64_t n);

}  // namespace percheron::cpu::PERCHERON_ISA
