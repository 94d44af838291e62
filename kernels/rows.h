#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace percheron {

/// rows x heads x columns elements, as kernels take them: a plain struct, which device code and the
/// sources that are compiled per instruction set may use. The last dimension is contiguous, strides
/// in elements. A matrix has one head.
template <class Pointer>
struct BasicRows {
  Pointer data;
  DType dtype;
  int64_t rows, heads, columns;
  int64_t row_stride, head_stride;
};
using Rows = BasicRows<void*>;
using ConstRows = BasicRows<const void*>;

}  // namespace percheron
