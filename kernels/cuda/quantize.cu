// Weights of 8 bits with a scale a row.

#include <cstring>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"

namespace percheron::cuda {
namespace {

__device__ inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
__device__ inline float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

struct Int8 {
  static constexpr float kLargest = 127;
  __device__ static uint8_t code(float x) {
    constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer.
    return static_cast<uint8_t>(bits_of(fminf(fmaxf(x, -kLargest), kLargest) + kRound));
  }
  __device__ static float value(uint8_t code) {
    return static_cast<float>(static_cast<int8_t>(code));
  }
};

struct E4m3 {
  static constexpr float kLargest = 448;
  __device__ static uint8_t code(float x) {
    const uint32_t sign = bits_of(x) >> 24 & 0x80u;
    const float size = fminf(fabsf(x), kLargest);
    const uint32_t bits = bits_of(size);
    // The exponent's bias falls from 127 to 7; below 2^-6 the codes are multiples of 2^-9.
    const uint32_t normal = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
    const uint32_t subnormal = bits_of(size + 16384.f) - bits_of(16384.f);
    return static_cast<uint8_t>(sign | (size < 0x1p-6f ? subnormal : normal));
  }
  __device__ static float value(uint8_t code) {
    const uint32_t size = code & 0x7fu, sign = static_cast<uint32_t>(code & 0x80u) << 24;
    if (size == 0x7f) return float_of(sign | 0x7fc00000u);
    const uint32_t normal = (size << 20) + (120u << 23);
    const uint32_t subnormal = bits_of(static_cast<float>(size) * 0x1p-9f);
    return float_of(sign | (size < 8 ? subnormal : normal));
  }
};

/// A block per row.
template <class Kind>
__global__ void quantize_rows_kernel(ConstRows weight, int64_t first_column, float* scales,
                                     Rows codes) {
  const int64_t row = blockIdx.x, source = row_offset(weight, row);
  Largest largest{0.f, 0};
  for (int64_t i = threadIdx.x; i < weight.columns; i += kReduceThreads) {
    largest.value = fmaxf(largest.value, fabsf(load(weight, source + i)));
  }
  const float step = block_largest(largest).value / Kind::kLargest;
  const float scale = step > 0 ? step : 1.f;
  if (threadIdx.x == 0) scales[row] = scale;
  auto* target = static_cast<uint8_t*>(codes.data) + row_offset(codes, row);
  for (int64_t i = threadIdx.x; i < codes.columns; i += kReduceThreads) {
    target[i] = Kind::code(load(weight, source + first_column + i) / scale);
  }
}

__device__ inline void assign(float& out, float value) { out = value; }
__device__ inline void assign(uint16_t& out, float value) { out = bf16_of_float(value); }

/// As much as a thread reads at once.
template <int kCodes>
struct alignas(kCodes) Codes {
  uint8_t code[kCodes];
};
template <class Out, int kCodes>
struct alignas(kCodes < 16 ? sizeof(Out) : 16) Values {
  Out value[kCodes];
};

/// Contiguous matrices whose rows are a multiple of kCodes.
template <class Kind, class Out, int kCodes>
__global__ void dequantize_rows_kernel(const Codes<kCodes>* codes, const float* scales,
                                       int64_t rows, int64_t row_groups, Values<Out, kCodes>* out) {
  for (int64_t i = first_element(); i < rows * row_groups; i += element_step()) {
    const float scale = scales[i / row_groups];
    const Codes<kCodes> group = codes[i];
    Values<Out, kCodes> values;
    for (int k = 0; k < kCodes; ++k) assign(values.value[k], Kind::value(group.code[k]) * scale);
    out[i] = values;
  }
}

template <class Kind, class Out, int kCodes>
void dequantize(Queue& queue, const ConstRows& codes, const float* scales, const Rows& out) {
  const int64_t row_groups = codes.columns / kCodes;
  const int64_t blocks = (codes.rows * row_groups + kElementThreads - 1) / kElementThreads;
  launch(queue, dequantize_rows_kernel<Kind, Out, kCodes>,
         Grid{blocks < kElementBlocksMax ? blocks : kElementBlocksMax}, kElementThreads,
         static_cast<const Codes<kCodes>*>(codes.data), scales, codes.rows, row_groups,
         static_cast<Values<Out, kCodes>*>(out.data));
}

template <class Kind, class Out>
void dequantize(Queue& queue, const ConstRows& codes, const float* scales, const Rows& out) {
  if (codes.columns % 16 == 0) return dequantize<Kind, Out, 16>(queue, codes, scales, out);
  dequantize<Kind, Out, 1>(queue, codes, scales, out);
}

template <class Kind>
void dequantize(Queue& queue, const ConstRows& codes, const float* scales, const Rows& out) {
  if (out.dtype == DType::kF32) return dequantize<Kind, float>(queue, codes, scales, out);
  dequantize<Kind, uint16_t>(queue, codes, scales, out);
}

}  // namespace

void quantize_rows(Queue& queue, const ConstRows& weight, int64_t first_column, float* scales,
                   const Rows& codes) {
  const auto kernel =
      codes.dtype == DType::kI8 ? quantize_rows_kernel<Int8> : quantize_rows_kernel<E4m3>;
  launch(queue, kernel, Grid{weight.rows}, kReduceThreads, weight, first_column, scales, codes);
}

void dequantize_rows(Queue& queue, const ConstRows& codes, const float* scales, const Rows& out) {
  if (codes.dtype == DType::kI8) return dequantize<Int8>(queue, codes, scales, out);
  dequantize<E4m3>(queue, codes, scales, out);
}

}  // namespace percheron::cuda
