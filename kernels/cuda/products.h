#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/cuda/queue.h"
#include "kernels/tensor.h"

namespace percheron::cuda {

/// c = alpha op(a) op(b) + beta c: op(a) is [m, k], op(b) [k, n], c [m, n], row-major. A transposed
/// operand is stored the other way round. Strides between stored rows are in elements. a and b are
/// both f32 or both bf16, c is either; sums are f32 (no TF32). c is not read where beta is 0.
struct MatrixProduct {
  struct Operand {
    const void* data;
    int64_t row_stride;
    bool transposed;
  };
  int64_t m, n, k;
  float alpha, beta;
  DType input_dtype;
  Operand a, b;
  DType c_dtype;
  void* c;
  int64_t c_row_stride;
};

/// Matrix products, the one thing that is not a kernel of ours: cuBLASLt on a GPU, plain loops in
/// emulation. A row of c has the same bits whatever m is.
class MatrixProducts {
 public:
  virtual ~MatrixProducts() = default;
  virtual Status multiply(Queue& queue, const MatrixProduct& product) = 0;
};

}  // namespace percheron::cuda
