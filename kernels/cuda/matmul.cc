// Matrix products of a CUDA or emulated device.

#include <utility>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernel_stream.h"
#include "kernels/cuda/kernels.h"
#include "kernels/shapes.h"

namespace percheron::cuda {
namespace {

/// A weight as it is, [out, in] without gaps, in the dtype of its products.
struct CudaPacked final : PackedMatrix {
  MatrixUse use;
  DType dtype;
  Buffer memory;

  /// Whether there was memory for it; else the stream has the error.
  bool present() const { return memory.data() != nullptr; }
};

const CudaPacked& packed_for(const PackedMatrix& packed, MatrixUse use) {
  const auto& result = static_cast<const CudaPacked&>(packed);
  PERCHERON_CHECK(result.use == use, "the weight was packed for the other direction");
  return result;
}

MatrixProduct::Operand operand(const ConstTensorView& x, bool transposed) {
  return {x.data(), x.stride(0), transposed};
}

/// The operand op(x) [rows, columns] as it lies in memory.
ConstTensorView stored(const MatrixProduct::Operand& x, DType dtype, int64_t rows,
                       int64_t columns) {
  if (x.transposed) std::swap(rows, columns);
  ConstTensorView view;
  view.assign(x.data, dtype, 2, {rows, columns, 0, 0}, {x.row_stride, 1, 0, 0});
  return view;
}

}  // namespace

std::unique_ptr<PackedMatrix> CudaOps::make_packed(Context& context, int64_t out_features,
                                                   int64_t in_features, DType dtype,
                                                   MatrixUse use) const {
  PERCHERON_CHECK(dtype == DType::kF32 || dtype == DType::kBf16,
                  "weights are packed as f32 or bf16");
  auto packed = std::make_unique<CudaPacked>();
  packed->out_features = out_features;
  packed->in_features = in_features;
  packed->use = use;
  packed->dtype = dtype;
  auto memory =
      context.device.allocate(static_cast<size_t>(out_features * in_features) * dtype_bytes(dtype));
  if (memory.ok()) {
    packed->memory = std::move(*memory);
  } else {
    context.stream.fail(memory.status());
  }
  return packed;
}

void CudaOps::pack(Context& context, ConstTensorView weight, PackedMatrix& packed) const {
  const auto& target = static_cast<const CudaPacked&>(packed);
  PERCHERON_CHECK(weight.rank() == 2 && weight.dim(0) == packed.out_features &&
                      weight.dim(1) == packed.in_features,
                  describe(weight));
  if (!target.present()) return;
  copy(context, weight,
       TensorView(target.memory.data(), target.dtype, {weight.dim(0), weight.dim(1)}));
}

void CudaOps::quantize_rows(Context& context, ConstTensorView weight, int64_t first_column,
                            TensorView scales, TensorView codes) const {
  check_quantize_rows(weight, first_column, scales, codes);
  cuda::quantize_rows(queue_of(context, {weight, scales, codes}), floats_of(weight), first_column,
                      vector_of<float>(scales), rows_of(codes));
}

void CudaOps::pack_quantized(Context& context, ConstTensorView codes, ConstTensorView scales,
                             PackedMatrix& packed) const {
  check_quantized(codes, scales);
  const auto& target = static_cast<const CudaPacked&>(packed);
  PERCHERON_CHECK(codes.dim(0) == packed.out_features && codes.dim(1) == packed.in_features,
                  describe(codes));
  if (!target.present()) return;
  const TensorView weight(target.memory.data(), target.dtype, {codes.dim(0), codes.dim(1)});
  cuda::dequantize_rows(queue_of(context, {codes, scales, weight}), rows_of(codes),
                        vector_of<float>(scales), rows_of(weight));
}

ConstTensorView CudaOps::as_dtype(Context& context, ConstTensorView x, DType dtype) const {
  if (x.dtype() == dtype) return x;
  const TensorView converted = context.arena.take(dtype, {x.dim(0), x.dim(1)});
  copy(context, x, converted);
  return converted;
}

void CudaOps::multiply(Context& context, const MatrixProduct& product) const {
  if (product.m == 0 || product.n == 0) return;
  const MatrixProduct& p = product;
  Queue& queue =
      queue_of(context, {stored(p.a, p.input_dtype, p.m, p.k), stored(p.b, p.input_dtype, p.k, p.n),
                         stored({p.c, p.c_row_stride, false}, p.c_dtype, p.m, p.n)});
  ++queue.launches;
  const Status status = products_->multiply(queue, product);
  if (!status.ok()) context.stream.fail(status);
}

void CudaOps::linear(Context& context, ConstTensorView x, const PackedMatrix& weight,
                     ConstTensorView bias, Write write, TensorView y) const {
  PERCHERON_CHECK(
      x.dim(0) == y.dim(0) && x.dim(1) == weight.in_features && y.dim(1) == weight.out_features,
      describe(x) + " to " + describe(y));
  (void)activations_of(x);
  const Rows y_rows = activations_of(y);
  const CudaPacked& packed = packed_for(weight, MatrixUse::kForward);
  if (!packed.present()) return;
  const Arena::Scope scope(context.arena);
  // A bias is added before bf16 rounds, not after.
  TensorView product = y;
  Write product_write = write;
  if (bias.present() && y.dtype() != DType::kF32) {
    product = context.arena.take(DType::kF32, {y.dim(0), y.dim(1)});
    product_write = Write::kOverwrite;
  }
  multiply(context, {.m = x.dim(0),
                     .n = weight.out_features,
                     .k = weight.in_features,
                     .alpha = 1,
                     .beta = product_write == Write::kAdd ? 1.f : 0.f,
                     .input_dtype = packed.dtype,
                     .a = operand(as_dtype(context, x, packed.dtype), false),
                     .b = {packed.memory.data(), weight.in_features, true},
                     .c_dtype = product.dtype(),
                     .c = product.data(),
                     .c_row_stride = product.stride(0)});
  if (!bias.present()) return;
  const bool in_place = product.data() == y.data();
  add_bias(queue_of(context, {bias}), rows_of(ConstTensorView(product)), vector_of<float>(bias),
           in_place ? Write::kOverwrite : write, y_rows);
}

void CudaOps::linear_backward_input(Context& context, ConstTensorView dy,
                                    const PackedMatrix& weight, Write write, TensorView dx) const {
  PERCHERON_CHECK(
      dy.dim(0) == dx.dim(0) && dy.dim(1) == weight.out_features && dx.dim(1) == weight.in_features,
      describe(dy) + " to " + describe(dx));
  (void)activations_of(dy);
  (void)activations_of(dx);
  const CudaPacked& packed = packed_for(weight, MatrixUse::kBackward);
  if (!packed.present()) return;
  const Arena::Scope scope(context.arena);
  multiply(context, {.m = dy.dim(0),
                     .n = weight.in_features,
                     .k = weight.out_features,
                     .alpha = 1,
                     .beta = write == Write::kAdd ? 1.f : 0.f,
                     .input_dtype = packed.dtype,
                     .a = operand(as_dtype(context, dy, packed.dtype), false),
                     .b = {packed.memory.data(), weight.in_features, false},
                     .c_dtype = dx.dtype(),
                     .c = dx.data(),
                     .c_row_stride = dx.stride(0)});
}

void CudaOps::linear_backward_weight(Context& context, ConstTensorView dy, ConstTensorView x,
                                     TensorView dweight) const {
  PERCHERON_CHECK(dy.dim(0) == x.dim(0) && dy.dim(1) == dweight.dim(0) &&
                      x.dim(1) == dweight.dim(1) && dweight.dtype() == DType::kF32,
                  describe(dy) + ", " + describe(x) + " to " + describe(dweight));
  (void)activations_of(dy);
  (void)activations_of(x);
  if (dy.dim(0) == 0) return;
  const bool narrow = dy.dtype() == DType::kBf16 && x.dtype() == DType::kBf16;
  const DType dtype = narrow ? DType::kBf16 : DType::kF32;
  const Arena::Scope scope(context.arena);
  multiply(context, {.m = dy.dim(1),
                     .n = x.dim(1),
                     .k = dy.dim(0),
                     .alpha = 1,
                     .beta = 1,
                     .input_dtype = dtype,
                     .a = operand(as_dtype(context, dy, dtype), true),
                     .b = operand(as_dtype(context, x, dtype), false),
                     .c_dtype = DType::kF32,
                     .c = dweight.data(),
                     .c_row_stride = dweight.stride(0)});
}

void CudaOps::matmul(Context& context, float alpha, ConstTensorView a, Transpose transpose_a,
                     ConstTensorView b, Transpose transpose_b, float beta, TensorView c) const {
  const bool a_transposed = transpose_a == Transpose::kYes;
  const bool b_transposed = transpose_b == Transpose::kYes;
  const int64_t depth = a.dim(a_transposed ? 0 : 1);
  PERCHERON_CHECK(depth == b.dim(b_transposed ? 1 : 0), describe(b));
  multiply(context, {.m = c.dim(0),
                     .n = c.dim(1),
                     .k = depth,
                     .alpha = alpha,
                     .beta = beta,
                     .input_dtype = DType::kF32,
                     .a = {vector_of<float>(a), a.dim(1), a_transposed},
                     .b = {vector_of<float>(b), b.dim(1), b_transposed},
                     .c_dtype = DType::kF32,
                     .c = vector_of<float>(c),
                     .c_row_stride = c.dim(1)});
}

}  // namespace percheron::cuda
