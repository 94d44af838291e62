#pragma once

// Elements of any float type and their places. The type is looked at per element: the plain path
// serves every combination with one kernel.

#include "kernels/cuda/cuda.cuh"
#include "kernels/rows.h"

namespace percheron::cuda {

/// Element-wise kernels: threads of a block, and how many elements a thread should have at least.
constexpr int kElementThreads = 256;
constexpr int64_t kElementsPerThread = 4;
constexpr int64_t kElementBlocksMax = 8192;

inline Grid element_grid(int64_t elements) {
  constexpr int64_t kPerBlock = kElementThreads * kElementsPerThread;
  const int64_t blocks = (elements + kPerBlock - 1) / kPerBlock;
  return {blocks < kElementBlocksMax ? blocks : kElementBlocksMax};
}

/// A thread's first element; the next ones follow at distances of element_step().
__device__ inline int64_t first_element() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t element_step() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

__device__ inline float float_of_bf16(uint16_t bits) {
#ifdef __CUDACC__
  return __bfloat162float(__ushort_as_bfloat16(bits));
#else
  return float_from_bf16(bits);
#endif
}
__device__ inline uint16_t bf16_of_float(float value) {
#ifdef __CUDACC__
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
  return bf16_from_float(value);
#endif
}
__device__ inline float float_of_f16(uint16_t bits) {
#ifdef __CUDACC__
  return __half2float(__ushort_as_half(bits));
#else
  return float_from_f16(bits);
#endif
}
__device__ inline uint16_t f16_of_float(float value) {
#ifdef __CUDACC__
  return __half_as_ushort(__float2half_rn(value));
#else
  return f16_from_float(value);
#endif
}

/// Element i of f32, bf16 or f16 memory.
__device__ inline float load(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return dtype == DType::kBf16 ? float_of_bf16(bits) : float_of_f16(bits);
}
__device__ inline void store(void* data, DType dtype, int64_t i, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<uint16_t*>(data)[i] =
        dtype == DType::kBf16 ? bf16_of_float(value) : f16_of_float(value);
  }
}
__device__ inline float rounded_to(DType dtype, float value) {
  if (dtype == DType::kF32) return value;
  return dtype == DType::kBf16 ? float_of_bf16(bf16_of_float(value))
                               : float_of_f16(f16_of_float(value));
}

/// Where a row, or a head's part of it, begins, in elements.
template <class Pointer>
__device__ inline int64_t row_offset(const BasicRows<Pointer>& x, int64_t row, int64_t head = 0) {
  return row * x.row_stride + head * x.head_stride;
}

/// Where element i lies, counted row by row, in elements.
template <class Pointer>
__device__ inline int64_t element_offset(const BasicRows<Pointer>& x, int64_t i) {
  if (x.rows == 1 && x.heads == 1) return i;
  const int64_t part = i / x.columns, column = i - part * x.columns;
  if (x.heads == 1) return part * x.row_stride + column;
  return row_offset(x, part / x.heads, part % x.heads) + column;
}

template <class Pointer>
__device__ inline float load(const BasicRows<Pointer>& x, int64_t offset) {
  return load(x.data, x.dtype, offset);
}
__device__ inline void store(const Rows& x, int64_t offset, float value) {
  store(x.data, x.dtype, offset, value);
}

template <class Pointer>
__device__ __host__ inline int64_t element_count(const BasicRows<Pointer>& x) {
  return x.rows * x.heads * x.columns;
}

}  // namespace percheron::cuda
