#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/check.h"

namespace percheron {

/// Element types. The names are those of safetensors. kF8E4m3 has 4 bits of exponent, 3 of mantissa
/// and no infinity: at most 448.
enum class DType : uint8_t {
  kF32,
  kBf16,
  kF16,
  kF64,
  kI64,
  kI32,
  kU32,
  kU8,
  kBool,
  kI8,
  kF8E4m3,
};

size_t dtype_bytes(DType dtype);
std::string_view dtype_name(DType dtype);  // "F32", "BF16", ...

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<uint32_t> {
  static constexpr DType value = DType::kU32;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};

/// A view of a tensor of rank 0 to 4 whose last dimension is contiguous; the others have strides in
/// elements. Owns nothing: the memory is a Tensor's, an Arena's or a mapped file's. Rank 0 with
/// null data means "absent", for optional operands.
template <class Pointer>
class BasicTensorView {
 public:
  static constexpr int kRankMax = 4;

  BasicTensorView() = default;
  BasicTensorView(Pointer data, DType dtype, std::span<const int64_t> shape)
      : data_(data), dtype_(dtype) {
    PERCHERON_CHECK(shape.size() <= kRankMax, "a tensor view has at most four dimensions");
    rank_ = static_cast<int>(shape.size());
    int64_t stride = 1;
    for (int i = rank_ - 1; i >= 0; --i) {
      shape_[i] = shape[i];
      stride_[i] = stride;
      stride *= shape[i];
    }
  }
  BasicTensorView(Pointer data, DType dtype, std::initializer_list<int64_t> shape)
      : BasicTensorView(data, dtype, std::span<const int64_t>(shape.begin(), shape.size())) {}

  /// A mutable view is a const view.
  operator BasicTensorView<const void*>() const {  // NOLINT: implicit by design
    BasicTensorView<const void*> view;
    view.assign(data_, dtype_, rank_, shape_, stride_);
    return view;
  }

  bool present() const { return data_ != nullptr; }
  Pointer data() const { return data_; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  int64_t dim(int i) const { return shape_[i < 0 ? rank_ + i : i]; }
  int64_t stride(int i) const { return stride_[i < 0 ? rank_ + i : i]; }
  std::span<const int64_t> shape() const { return {shape_.data(), static_cast<size_t>(rank_)}; }

  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= shape_[i];
    return n;
  }
  size_t bytes() const { return static_cast<size_t>(elements()) * dtype_bytes(dtype_); }
  bool contiguous() const {
    int64_t stride = 1;
    for (int i = rank_ - 1; i >= 0; --i) {
      if (shape_[i] != 1 && stride_[i] != stride) return false;
      stride *= shape_[i];
    }
    return true;
  }

  /// The elements as T; T must match the dtype (bf16 and f16 as uint16_t, bool as uint8_t).
  template <class T>
  auto as() const {
    PERCHERON_CHECK(sizeof(T) == dtype_bytes(dtype_), "the element size differs from the dtype's");
    if constexpr (std::is_const_v<std::remove_pointer_t<Pointer>>) {
      return static_cast<const T*>(data_);
    } else {
      return static_cast<T*>(data_);
    }
  }

  /// Rows [begin, end) of the first dimension.
  BasicTensorView rows(int64_t begin, int64_t end) const {
    PERCHERON_CHECK(rank_ >= 1 && 0 <= begin && begin <= end && end <= shape_[0],
                    "row range outside the tensor");
    BasicTensorView view = *this;
    view.shape_[0] = end - begin;
    view.data_ = offset(begin * stride_[0]);
    return view;
  }

  /// Columns [begin, end) of the last dimension of a matrix: a view with the same row stride.
  BasicTensorView columns(int64_t begin, int64_t end) const {
    PERCHERON_CHECK(rank_ == 2 && 0 <= begin && begin <= end && end <= shape_[1],
                    "column range outside the tensor");
    BasicTensorView view = *this;
    view.shape_[1] = end - begin;
    view.data_ = offset(begin);
    return view;
  }

  /// A matrix [N, heads * head_dim], possibly strided, seen as [N, heads, head_dim].
  BasicTensorView heads(int64_t head_dim) const {
    PERCHERON_CHECK(rank_ == 2 && head_dim > 0 && shape_[1] % head_dim == 0,
                    "columns are not a multiple of head_dim");
    BasicTensorView view = *this;
    view.rank_ = 3;
    view.shape_ = {shape_[0], shape_[1] / head_dim, head_dim, 0};
    view.stride_ = {stride_[0], head_dim, 1, 0};
    return view;
  }

  /// The same contiguous elements in another shape.
  BasicTensorView reshaped(std::initializer_list<int64_t> shape) const {
    PERCHERON_CHECK(contiguous(), "only a contiguous tensor can be reshaped");
    BasicTensorView view(data_, dtype_, shape);
    PERCHERON_CHECK(view.elements() == elements(), "a reshape must keep the number of elements");
    return view;
  }

  void assign(Pointer data, DType dtype, int rank, const std::array<int64_t, kRankMax>& shape,
              const std::array<int64_t, kRankMax>& stride) {
    data_ = data;
    dtype_ = dtype;
    rank_ = rank;
    shape_ = shape;
    stride_ = stride;
  }

 private:
  Pointer offset(int64_t count) const {
    using Byte =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
    return static_cast<Byte*>(data_) + count * static_cast<int64_t>(dtype_bytes(dtype_));
  }

  Pointer data_ = nullptr;
  DType dtype_ = DType::kF32;
  int rank_ = 0;
  std::array<int64_t, kRankMax> shape_{};
  std::array<int64_t, kRankMax> stride_{};
};

using TensorView = BasicTensorView<void*>;
using ConstTensorView = BasicTensorView<const void*>;

/// A view of a vector's elements as a tensor [n].
template <class T>
ConstTensorView view_of(std::span<const T> values) {
  return ConstTensorView(values.data(), DTypeOf<T>::value, {static_cast<int64_t>(values.size())});
}

/// "[3, 576] BF16", for messages.
std::string describe(const ConstTensorView& view);

/// The index of the first NaN or infinity of a contiguous F32, F16 or BF16 tensor, or -1.
int64_t first_not_finite(const ConstTensorView& view);

/// bf16 and f16 as bits, rounded to nearest even.
uint16_t bf16_from_float(float value);
float float_from_bf16(uint16_t bits);
uint16_t f16_from_float(float value);
float float_from_f16(uint16_t bits);

}  // namespace percheron
