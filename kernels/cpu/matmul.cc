// Matrix products: our own over packed panels.

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/shapes.h"

namespace percheron::cpu {
namespace {

/// A weight in panels of the kernels' width, f32 or bf16.
struct PackedPanels final : PackedMatrix {
  MatrixUse use;
  DType dtype;
  Buffer panels;
};

const PackedPanels& panels_of(const PackedMatrix& packed, MatrixUse use) {
  const auto& panels = static_cast<const PackedPanels&>(packed);
  PERCHERON_CHECK(panels.use == use, "the weight was packed for the other direction");
  return panels;
}

void* product_scratch(Context& context, const KernelTable& kernels) {
  const int64_t bytes = kernels.product_scratch_bytes * omp_get_max_threads();
  return context.arena.take(DType::kU8, {bytes}).data();
}

}  // namespace

std::unique_ptr<PackedMatrix> CpuOps::make_packed(Context& context, int64_t out_features,
                                                  int64_t in_features, DType dtype,
                                                  MatrixUse use) const {
  PERCHERON_CHECK(dtype == DType::kF32 || dtype == DType::kBf16,
                  "weights are packed as f32 or bf16");
  auto packed = std::make_unique<PackedPanels>();
  packed->out_features = out_features;
  packed->in_features = in_features;
  packed->use = use;
  packed->dtype = dtype;
  const bool forward = use == MatrixUse::kForward;
  const int64_t columns = forward ? out_features : in_features;
  const int64_t depth = forward ? in_features : out_features;
  const int64_t width = kernels_.panel_columns;
  const int64_t elements = (columns + width - 1) / width * width * depth;
  auto buffer = context.device.allocate(static_cast<size_t>(elements) * dtype_bytes(dtype));
  PERCHERON_CHECK(buffer.ok(), buffer.status().message());
  packed->panels = std::move(*buffer);
  return packed;
}

void CpuOps::pack(Context&, ConstTensorView weight, PackedMatrix& packed) const {
  auto& panels = static_cast<PackedPanels&>(packed);
  PERCHERON_CHECK(weight.rank() == 2 && weight.dim(0) == packed.out_features &&
                      weight.dim(1) == packed.in_features,
                  describe(weight));
  kernels_.pack_panels(rows_of(weight),
                       panels.use == MatrixUse::kForward ? PanelColumns::kRowsOfWeight
                                                         : PanelColumns::kColumnsOfWeight,
                       panels.dtype, panels.panels.data());
}

void CpuOps::linear(Context& context, ConstTensorView x, const PackedMatrix& weight,
                    ConstTensorView bias, Write write, TensorView y) const {
  PERCHERON_CHECK(
      x.dim(0) == y.dim(0) && x.dim(1) == weight.in_features && y.dim(1) == weight.out_features,
      describe(x) + " to " + describe(y));
  if (x.dim(0) == 0) return;
  Arena::Scope scope(context.arena);
  const PackedPanels& panels = panels_of(weight, MatrixUse::kForward);
  kernels_.product({.x = rows_of(x),
                    .panels = panels.panels.data(),
                    .panels_dtype = panels.dtype,
                    .bias = vector_or_null<float>(bias),
                    .write = write,
                    .y = rows_of(y),
                    .scratch = product_scratch(context, kernels_)});
}

void CpuOps::linear_backward_input(Context& context, ConstTensorView dy, const PackedMatrix& weight,
                                   Write write, TensorView dx) const {
  PERCHERON_CHECK(
      dy.dim(0) == dx.dim(0) && dy.dim(1) == weight.out_features && dx.dim(1) == weight.in_features,
      describe(dy) + " to " + describe(dx));
  if (dy.dim(0) == 0) return;
  Arena::Scope scope(context.arena);
  const PackedPanels& panels = panels_of(weight, MatrixUse::kBackward);
  kernels_.product({.x = rows_of(dy),
                    .panels = panels.panels.data(),
                    .panels_dtype = panels.dtype,
                    .bias = nullptr,
                    .write = write,
                    .y = rows_of(dx),
                    .scratch = product_scratch(context, kernels_)});
}

void CpuOps::linear_backward_weight(Context& context, ConstTensorView dy, ConstTensorView x,
                                    TensorView dweight) const {
  PERCHERON_CHECK(dy.dim(0) == x.dim(0) && dy.dim(1) == dweight.dim(0) &&
                      x.dim(1) == dweight.dim(1) && dweight.dtype() == DType::kF32,
                  describe(dy) + ", " + describe(x) + " to " + describe(dweight));
  if (dy.dim(0) == 0) return;
  Arena::Scope scope(context.arena);
  kernels_.weight_gradient({.dy = rows_of(dy),
                            .x = rows_of(x),
                            .dweight = rows_of(dweight),
                            .scratch = product_scratch(context, kernels_)});
}

void CpuOps::matmul(Context&, float alpha, ConstTensorView a, Transpose transpose_a,
                    ConstTensorView b, Transpose transpose_b, float beta, TensorView c) const {
  const bool a_transposed = transpose_a == Transpose::kYes;
  const int64_t depth = a.dim(a_transposed ? 0 : 1);
  PERCHERON_CHECK(depth == b.dim(transpose_b == Transpose::kYes ? 1 : 0), describe(b));
  const dnnl_status_t status =
      dnnl_sgemm(a_transposed ? 'T' : 'N', transpose_b == Transpose::kYes ? 'T' : 'N', c.dim(0),
                 c.dim(1), depth, alpha, vector_of<float>(a), a.dim(1), vector_of<float>(b),
                 b.dim(1), beta, vector_of<float>(c), c.dim(1));
  PERCHERON_CHECK(status == dnnl_success, "dnnl_sgemm failed");
}

}  // namespace percheron::cpu
