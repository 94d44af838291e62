// Matrix products: by oneDNN where the processor multiplies bf16 and bf16 is asked for, else our
// own over packed panels.

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <mutex>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/shapes.h"

namespace percheron::cpu {
namespace {

/// A weight in panels of the kernels' width, f32 or bf16, or in oneDNN's layout.
struct CpuPacked final : PackedMatrix {
  MatrixUse use;
  DType dtype;
  Buffer panels;
  std::unique_ptr<OneDnnWeight> native;

  /// Beside `native`, for decoding: made when it comes for the first time after pack().
  mutable std::mutex pairs_mutex;
  mutable bool pairs_fresh = false;
  mutable Buffer pairs;
};

const CpuPacked& packed_for(const PackedMatrix& packed, MatrixUse use) {
  const auto& result = static_cast<const CpuPacked&>(packed);
  PERCHERON_CHECK(result.use == use, "the weight was packed for the other direction");
  return result;
}

void* product_scratch(Context& context, const KernelTable& kernels) {
  const int64_t bytes = kernels.product_scratch_bytes * omp_get_max_threads();
  return context.arena.take(DType::kU8, {bytes}).data();
}

/// Where decoding reads the weight; null, and the stream says so, if there is no memory.
const void* fresh_pairs(Context& context, const KernelTable& kernels, OneDnnProducts& native,
                        const CpuPacked& packed) {
  const std::lock_guard lock(packed.pairs_mutex);
  if (packed.pairs_fresh) return packed.pairs.data();
  if (packed.pairs.data() == nullptr) {
    const int64_t bytes = kernels.bf16_pairs_bytes(packed.out_features, packed.in_features);
    auto buffer = context.device.allocate(static_cast<size_t>(bytes));
    if (!buffer.ok()) {
      context.stream.fail(buffer.status());
      return nullptr;
    }
    packed.pairs = std::move(*buffer);
  }
  const Arena::Scope scope(context.arena);
  const TensorView weight =
      context.arena.take(DType::kBf16, {packed.out_features, packed.in_features});
  native.unpack(*packed.native, weight);
  kernels.pack_bf16_pairs(rows_of(ConstTensorView(weight)), packed.pairs.data());
  packed.pairs_fresh = true;
  return packed.pairs.data();
}

ConstTensorView as_bf16(const Ops& ops, Context& context, const ConstTensorView& x) {
  if (x.dtype() == DType::kBf16) return x;
  const TensorView narrow = context.arena.take(DType::kBf16, {x.dim(0), x.dim(1)});
  ops.copy(context, x, narrow);
  return narrow;
}

}  // namespace

std::unique_ptr<PackedMatrix> CpuOps::make_packed(Context& context, int64_t out_features,
                                                  int64_t in_features, DType dtype,
                                                  MatrixUse use) const {
  PERCHERON_CHECK(dtype == DType::kF32 || dtype == DType::kBf16,
                  "weights are packed as f32 or bf16");
  auto packed = std::make_unique<CpuPacked>();
  packed->out_features = out_features;
  packed->in_features = in_features;
  packed->use = use;
  packed->dtype = dtype;
  if (native_ != nullptr && dtype == DType::kBf16) {
    packed->native = native_->make_weight(context, out_features, in_features, use);
    if (packed->native != nullptr) return packed;
  }
  const bool forward = use == MatrixUse::kForward;
  const int64_t columns = forward ? out_features : in_features;
  const int64_t depth = forward ? in_features : out_features;
  const int64_t width = kernels_.panel_columns;
  const int64_t elements = (columns + width - 1) / width * width * depth;
  auto buffer = context.device.allocate(static_cast<size_t>(elements) * dtype_bytes(dtype));
  if (buffer.ok()) {
    packed->panels = std::move(*buffer);
  } else {
    context.stream.fail(buffer.status());
  }
  return packed;
}

void CpuOps::pack(Context& context, ConstTensorView weight, PackedMatrix& packed) const {
  auto& target = static_cast<CpuPacked&>(packed);
  PERCHERON_CHECK(weight.rank() == 2 && weight.dim(0) == packed.out_features &&
                      weight.dim(1) == packed.in_features,
                  describe(weight));
  if (target.native != nullptr) {
    Arena::Scope scope(context.arena);
    native_->pack(context, as_bf16(*this, context, weight), *target.native);
    target.pairs_fresh = false;
    return;
  }
  if (target.panels.data() == nullptr) return;  // There was no memory: the stream says so.
  kernels_.pack_panels(floats_of(weight),
                       target.use == MatrixUse::kForward ? PanelColumns::kRowsOfWeight
                                                         : PanelColumns::kColumnsOfWeight,
                       target.dtype, target.panels.data());
}

void CpuOps::quantize_rows(Context&, ConstTensorView weight, int64_t first_column,
                           TensorView scales, TensorView codes) const {
  check_quantize_rows(weight, first_column, scales, codes);
  kernels_.quantize_rows(floats_of(weight), first_column, vector_of<float>(scales), rows_of(codes));
}

void CpuOps::pack_quantized(Context& context, ConstTensorView codes, ConstTensorView scales,
                            PackedMatrix& packed) const {
  check_quantized(codes, scales);
  const Arena::Scope scope(context.arena);
  const TensorView weight =
      context.arena.take(static_cast<const CpuPacked&>(packed).dtype, {codes.dim(0), codes.dim(1)});
  kernels_.dequantize_rows(rows_of(codes), vector_of<float>(scales), rows_of(weight));
  pack(context, weight, packed);
}

void CpuOps::product(Context& context, ConstTensorView x, const PackedMatrix& weight, MatrixUse use,
                     ConstTensorView bias, Write write, TensorView y) const {
  if (x.dim(0) == 0) return;
  Arena::Scope scope(context.arena);
  const CpuPacked& packed = packed_for(weight, use);
  if (packed.native != nullptr) {
    const ConstTensorView narrow = as_bf16(*this, context, x);
    // oneDNN computes whole chunks of rows: for few rows far more than there is.
    const bool few = context.decoding && use == MatrixUse::kForward && x.dim(1) % 2 == 0;
    if (!few) return native_->product(context, narrow, *packed.native, bias, write, y);
    const void* pairs = fresh_pairs(context, kernels_, *native_, packed);
    if (pairs == nullptr) return;
    kernels_.few_bf16_rows_product({.x = activations_of(narrow),
                                    .panels = pairs,
                                    .panels_dtype = DType::kBf16,
                                    .bias = vector_or_null<float>(bias),
                                    .write = write,
                                    .y = activations_of(y),
                                    .scratch = nullptr});
    return;
  }
  if (packed.panels.data() == nullptr) return;
  kernels_.product({.x = activations_of(x),
                    .panels = packed.panels.data(),
                    .panels_dtype = packed.dtype,
                    .bias = vector_or_null<float>(bias),
                    .write = write,
                    .y = activations_of(y),
                    .scratch = product_scratch(context, kernels_)});
}

void CpuOps::linear(Context& context, ConstTensorView x, const PackedMatrix& weight,
                    ConstTensorView bias, Write write, TensorView y) const {
  PERCHERON_CHECK(
      x.dim(0) == y.dim(0) && x.dim(1) == weight.in_features && y.dim(1) == weight.out_features,
      describe(x) + " to " + describe(y));
  product(context, x, weight, MatrixUse::kForward, bias, write, y);
}

void CpuOps::linear_backward_input(Context& context, ConstTensorView dy, const PackedMatrix& weight,
                                   Write write, TensorView dx) const {
  PERCHERON_CHECK(
      dy.dim(0) == dx.dim(0) && dy.dim(1) == weight.out_features && dx.dim(1) == weight.in_features,
      describe(dy) + " to " + describe(dx));
  product(context, dy, weight, MatrixUse::kBackward, ConstTensorView(), write, dx);
}

void CpuOps::linear_backward_weight(Context& context, ConstTensorView dy, ConstTensorView x,
                                    TensorView dweight) const {
  PERCHERON_CHECK(dy.dim(0) == x.dim(0) && dy.dim(1) == dweight.dim(0) &&
                      x.dim(1) == dweight.dim(1) && dweight.dtype() == DType::kF32,
                  describe(dy) + ", " + describe(x) + " to " + describe(dweight));
  if (dy.dim(0) == 0) return;
  if (native_ != nullptr && dy.dtype() == DType::kBf16 && x.dtype() == DType::kBf16) {
    native_->weight_gradient(context, dy, x, dweight);
    return;
  }
  Arena::Scope scope(context.arena);
  kernels_.weight_gradient({.dy = activations_of(dy),
                            .x = activations_of(x),
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
