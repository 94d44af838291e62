#pragma once

#include <memory>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/onednn_products.h"
#include "kernels/ops.h"

namespace percheron::cpu {

/// The operations of the CPU device. Checks shapes, takes scratch and calls the kernels of one
/// instruction set, or oneDNN for matrix products. Operations are done when they return.
class CpuOps final : public Ops {
 public:
  explicit CpuOps(const Isa& isa)
      : kernels_(*isa.kernels),
        native_(isa.native_bf16 ? std::make_unique<OneDnnProducts>(DType::kBf16) : nullptr) {}

  void copy(Context& context, ConstTensorView source, TensorView destination) const override;
  void fill_zero(Context& context, TensorView x) const override;
  void add(Context& context, ConstTensorView x, TensorView y) const override;
  void gather_rows(Context& context, ConstTensorView table, ConstTensorView rows,
                   TensorView out) const override;
  void scatter_add_rows(Context& context, ConstTensorView x, ConstTensorView rows,
                        TensorView out) const override;

  std::unique_ptr<PackedMatrix> make_packed(Context& context, int64_t out_features,
                                            int64_t in_features, DType dtype,
                                            MatrixUse use) const override;
  void pack(Context& context, ConstTensorView weight, PackedMatrix& packed) const override;
  void quantize_rows(Context& context, ConstTensorView weight, int64_t first_column,
                     TensorView scales, TensorView codes) const override;
  void pack_quantized(Context& context, ConstTensorView codes, ConstTensorView scales,
                      PackedMatrix& packed) const override;
  void linear(Context& context, ConstTensorView x, const PackedMatrix& weight, ConstTensorView bias,
              Write write, TensorView y) const override;
  void linear_backward_input(Context& context, ConstTensorView dy, const PackedMatrix& weight,
                             Write write, TensorView dx) const override;
  void linear_backward_weight(Context& context, ConstTensorView dy, ConstTensorView x,
                              TensorView dweight) const override;
  void matmul(Context& context, float alpha, ConstTensorView a, Transpose transpose_a,
              ConstTensorView b, Transpose transpose_b, float beta, TensorView c) const override;

  void rms_norm(Context& context, ConstTensorView x, ConstTensorView weight, float epsilon,
                TensorView out, TensorView inverse_rms) const override;
  void rms_norm_backward(Context& context, ConstTensorView dy, ConstTensorView x,
                         ConstTensorView weight, ConstTensorView inverse_rms, Write write,
                         TensorView dx, TensorView dweight) const override;
  void rotary(Context& context, TensorView x, ConstTensorView positions, ConstTensorView cos,
              ConstTensorView sin, RotaryDirection direction) const override;
  void swiglu(Context& context, ConstTensorView gate_up, TensorView out) const override;
  void swiglu_backward(Context& context, ConstTensorView dout, ConstTensorView gate_up,
                       TensorView dgate_up) const override;
  void attention(Context& context, ConstTensorView q, ConstTensorView k, ConstTensorView v,
                 ConstTensorView intervals, float scale, TensorView out,
                 TensorView log_sum_exp) const override;
  void attention_backward(Context& context, ConstTensorView dout, ConstTensorView q,
                          ConstTensorView k, ConstTensorView v, ConstTensorView out,
                          ConstTensorView log_sum_exp, ConstTensorView intervals, float scale,
                          TensorView dq, TensorView dk, TensorView dv) const override;

  void cross_entropy(Context& context, TensorView logits, ConstTensorView labels,
                     ConstTensorView weights, Gradient gradient, TensorView loss,
                     TensorView argmax) const override;
  void teacher_loss(Context& context, TeacherLoss kind, TensorView logits,
                    ConstTensorView teacher_logits, ConstTensorView weights, Gradient gradient,
                    TensorView loss, TensorView argmax, TensorView teacher_argmax) const override;
  void argmax(Context& context, ConstTensorView x, TensorView out) const override;

  void squared_norm(Context& context, ConstTensorView x, TensorView sum) const override;
  void clip_scale(Context& context, ConstTensorView squared_norm, double divisor, double norm_max,
                  TensorView scale) const override;
  void adamw(Context& context, const AdamWSettings& settings, ConstTensorView scale,
             ConstTensorView g, TensorView p, TensorView m, TensorView v) const override;
  void axpby(Context& context, float a, ConstTensorView x, float b, TensorView y) const override;
  void scale_by(Context& context, ConstTensorView factor, TensorView x) const override;

 private:
  /// y (+)= x B + bias, with the weight as B.
  void product(Context& context, ConstTensorView x, const PackedMatrix& weight, MatrixUse use,
               ConstTensorView bias, Write write, TensorView y) const;

  const KernelTable& kernels_;
  const std::unique_ptr<OneDnnProducts> native_;  // null without products in bf16
};

}  // namespace percheron::cpu
