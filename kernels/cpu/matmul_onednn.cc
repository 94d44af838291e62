// Matrix products through oneDNN.

#include <oneapi/dnnl/dnnl.h>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/shapes.h"

namespace percheron::cpu {
namespace {

/// The weight as f32 rows [out, in].
struct CpuPackedMatrix final : PackedMatrix {
  Tensor weight;
};

void sgemm(char transpose_a, char transpose_b, const ConstTensorView& a, const ConstTensorView& b,
           float alpha, float beta, const TensorView& c) {
  const int64_t inner = transpose_a == 'N' ? a.dim(1) : a.dim(0);
  const dnnl_status_t status =
      dnnl_sgemm(transpose_a, transpose_b, c.dim(0), c.dim(1), inner, alpha, a.as<float>(),
                 a.stride(0), b.as<float>(), b.stride(0), beta, c.as<float>(), c.stride(0));
  PERCHERON_CHECK(status == dnnl_success, "dnnl_sgemm failed");
}

ConstTensorView as_f32(const CpuOps& ops, Context& context, const ConstTensorView& x) {
  if (x.dtype() == DType::kF32) return x;
  const TensorView wide = context.arena.take(DType::kF32, {x.dim(0), x.dim(1)});
  ops.copy(context, x, wide);
  return wide;
}

}  // namespace

std::unique_ptr<PackedMatrix> CpuOps::make_packed(Context& context, int64_t out_features,
                                                  int64_t in_features, DType, MatrixUse) const {
  auto packed = std::make_unique<CpuPackedMatrix>();
  packed->out_features = out_features;
  packed->in_features = in_features;
  auto weight = context.device.make_tensor(DType::kF32, {out_features, in_features});
  PERCHERON_CHECK(weight.ok(), weight.status().message());
  packed->weight = std::move(*weight);
  return packed;
}

void CpuOps::pack(Context& context, ConstTensorView weight, PackedMatrix& packed) const {
  copy(context, weight, static_cast<CpuPackedMatrix&>(packed).weight);
}

void CpuOps::linear(Context& context, ConstTensorView x, const PackedMatrix& weight,
                    ConstTensorView bias, Write write, TensorView y) const {
  if (x.dim(0) == 0) return;
  Arena::Scope scope(context.arena);
  const ConstTensorView w = static_cast<const CpuPackedMatrix&>(weight).weight;
  TensorView out = y;
  if (y.dtype() != DType::kF32) {
    out = context.arena.take(DType::kF32, {y.dim(0), y.dim(1)});
    if (write == Write::kAdd) copy(context, y, out);
  }
  sgemm('N', 'T', as_f32(*this, context, x), w, 1.f, write == Write::kAdd ? 1.f : 0.f, out);
  if (bias.present()) kernels_.add_bias(vector_of<float>(bias), rows_of(out));
  if (y.dtype() != DType::kF32) copy(context, out, y);
}

void CpuOps::linear_backward_input(Context& context, ConstTensorView dy, const PackedMatrix& weight,
                                   Write write, TensorView dx) const {
  if (dy.dim(0) == 0) return;
  Arena::Scope scope(context.arena);
  const ConstTensorView w = static_cast<const CpuPackedMatrix&>(weight).weight;
  TensorView out = dx;
  if (dx.dtype() != DType::kF32) {
    out = context.arena.take(DType::kF32, {dx.dim(0), dx.dim(1)});
    if (write == Write::kAdd) copy(context, dx, out);
  }
  sgemm('N', 'N', as_f32(*this, context, dy), w, 1.f, write == Write::kAdd ? 1.f : 0.f, out);
  if (dx.dtype() != DType::kF32) copy(context, out, dx);
}

void CpuOps::linear_backward_weight(Context& context, ConstTensorView dy, ConstTensorView x,
                                    TensorView dweight) const {
  if (dy.dim(0) == 0) return;
  Arena::Scope scope(context.arena);
  sgemm('T', 'N', as_f32(*this, context, dy), as_f32(*this, context, x), 1.f, 1.f, dweight);
}

void CpuOps::matmul(Context&, float alpha, ConstTensorView a, Transpose transpose_a,
                    ConstTensorView b, Transpose transpose_b, float beta, TensorView c) const {
  sgemm(transpose_a == Transpose::kYes ? 'T' : 'N', transpose_b == Transpose::kYes ? 'T' : 'N', a,
        b, alpha, beta, c);
}

}  // namespace percheron::cpu
