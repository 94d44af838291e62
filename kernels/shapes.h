#pragma once

#include <algorithm>

#include "kernels/ops.h"
#include "kernels/rows.h"
#include "kernels/tensor.h"

/// Tensor views as the plain structs that kernels take, and the shape checks of operations, which
/// are the same on every device.
namespace percheron {

template <class Pointer>
BasicRows<Pointer> rows_of(const BasicTensorView<Pointer>& x) {
  switch (x.rank()) {
    case 1: return {x.data(), x.dtype(), 1, 1, x.dim(0), x.dim(0), x.dim(0)};
    case 2: return {x.data(), x.dtype(), x.dim(0), 1, x.dim(1), x.stride(0), x.dim(1)};
    case 3: return {x.data(), x.dtype(), x.dim(0), x.dim(1), x.dim(2), x.stride(0), x.stride(1)};
    default:
      PERCHERON_CHECK(false,
                      "expected a vector, a matrix or [rows, heads, columns], not " + describe(x));
  }
}

/// As rows_of(), for activations: f32 or bf16.
template <class Pointer>
BasicRows<Pointer> activations_of(const BasicTensorView<Pointer>& x) {
  PERCHERON_CHECK(x.dtype() == DType::kF32 || x.dtype() == DType::kBf16, describe(x));
  return rows_of(x);
}

/// As rows_of(), for what operations convert: f32, bf16 or f16.
template <class Pointer>
BasicRows<Pointer> floats_of(const BasicTensorView<Pointer>& x) {
  PERCHERON_CHECK(x.dtype() == DType::kF16 || x.dtype() == DType::kF32 || x.dtype() == DType::kBf16,
                  describe(x));
  return rows_of(x);
}

/// As floats_of(), but a contiguous tensor of any rank is one row.
template <class Pointer>
BasicRows<Pointer> elements_of(const BasicTensorView<Pointer>& x) {
  if (!x.contiguous() || x.rank() == 1) return floats_of(x);
  return floats_of(BasicTensorView<Pointer>(x.data(), x.dtype(), {x.elements()}));
}

/// The elements of a contiguous tensor of T.
template <class T, class Pointer>
auto vector_of(const BasicTensorView<Pointer>& x) {
  PERCHERON_CHECK(x.dtype() == DTypeOf<T>::value && x.contiguous(), describe(x));
  return x.template as<T>();
}
template <class T, class Pointer>
auto vector_or_null(const BasicTensorView<Pointer>& x) {
  return x.present() ? vector_of<T>(x) : nullptr;
}

inline void check_same_shape(const ConstTensorView& x, const ConstTensorView& y) {
  PERCHERON_CHECK(std::ranges::equal(x.shape(), y.shape()), describe(x) + " and " + describe(y));
}

inline void check_attention_shapes(const ConstTensorView& q, const ConstTensorView& k,
                                   const ConstTensorView& v, const ConstTensorView& intervals) {
  check_same_shape(k, v);
  PERCHERON_CHECK(k.dtype() == v.dtype(), describe(k) + " and " + describe(v));
  PERCHERON_CHECK(q.rank() == 3 && k.rank() == 3 && q.dim(2) == k.dim(2), describe(k));
  PERCHERON_CHECK(q.dim(2) % 2 == 0 && q.dim(2) <= kHeadDimMax, describe(q));
  PERCHERON_CHECK(k.dim(1) > 0 && q.dim(1) % k.dim(1) == 0, describe(q));
  PERCHERON_CHECK(q.dim(1) / k.dim(1) <= kHeadsPerKeyHeadMax, describe(q) + ", " + describe(k));
  PERCHERON_CHECK(intervals.elements() == 4 * q.dim(0), describe(intervals));
}

/// What attention_backward() takes beside attention()'s operands.
inline void check_attention_gradients(const ConstTensorView& q, const ConstTensorView& k,
                                      const ConstTensorView& dout, const ConstTensorView& out,
                                      const ConstTensorView& log_sum_exp, const ConstTensorView& dq,
                                      const ConstTensorView& dk, const ConstTensorView& dv) {
  check_same_shape(q, dout);
  check_same_shape(q, out);
  check_same_shape(q, dq);
  check_same_shape(k, dk);
  check_same_shape(k, dv);
  PERCHERON_CHECK(q.dtype() == dout.dtype() && q.dtype() == out.dtype(), describe(dout));
  PERCHERON_CHECK(dk.dtype() == DType::kF32 && dv.dtype() == DType::kF32, describe(dk));
  PERCHERON_CHECK(log_sum_exp.elements() == q.dim(0) * q.dim(1), describe(log_sum_exp));
}

/// What quantize_rows() and pack_quantized() take.
inline void check_quantized(const ConstTensorView& codes, const ConstTensorView& scales) {
  PERCHERON_CHECK(codes.dtype() == DType::kI8 || codes.dtype() == DType::kF8E4m3, describe(codes));
  PERCHERON_CHECK(codes.rank() == 2 && codes.contiguous(), describe(codes));
  PERCHERON_CHECK(scales.rank() == 1 && scales.dim(0) == codes.dim(0), describe(scales));
}
inline void check_quantize_rows(const ConstTensorView& weight, int64_t first_column,
                                const ConstTensorView& scales, const ConstTensorView& codes) {
  check_quantized(codes, scales);
  PERCHERON_CHECK(weight.rank() == 2 && weight.dim(0) == codes.dim(0), describe(weight));
  PERCHERON_CHECK(first_column >= 0 && first_column + codes.dim(1) <= weight.dim(1),
                  describe(codes) + " of " + describe(weight));
}

inline void check_size_if_present(const ConstTensorView& x, int64_t elements) {
  PERCHERON_CHECK(!x.present() || x.elements() == elements, describe(x));
}

/// The gradient scales by the weights: only losses without it can do without them.
inline void check_loss(const ConstTensorView& logits, const ConstTensorView& weights,
                       Gradient gradient, const ConstTensorView& loss) {
  PERCHERON_CHECK(logits.rank() == 2 && logits.dtype() == DType::kF32, describe(logits));
  PERCHERON_CHECK(loss.elements() == logits.dim(0), describe(loss));
  PERCHERON_CHECK(gradient == Gradient::kNone || weights.present(), "a gradient needs weights");
  check_size_if_present(weights, logits.dim(0));
}

}  // namespace percheron
