#pragma once

// Sums and maxima over a warp or a block. Every thread gets the result, always in the same order of
// additions.

#include "kernels/cuda/cuda.cuh"

namespace percheron::cuda {

constexpr int kReduceThreads = 256;
constexpr int kReduceWarps = kReduceThreads / kWarpThreads;

template <class T>
__device__ inline T warp_sum(T value) {
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

/// Of a block of kReduceThreads.
__device__ inline double block_sum(double value) {
  using Partial = double[kReduceWarps];
  PERCHERON_SHARED(Partial, partial);
  value = warp_sum(value);
  if (threadIdx.x % kWarpThreads == 0) partial[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  double total = 0;
  for (int i = 0; i < kReduceWarps; ++i) total += partial[i];
  __syncthreads();  // `partial` may be written again at once.
  return total;
}

struct Largest {
  float value;
  int32_t index;
};

/// The larger; on a tie the one with the lower index.
__device__ inline Largest larger_of(Largest a, Largest b) {
  const bool second = b.value > a.value || (b.value == a.value && b.index < a.index);
  return second ? b : a;
}

/// Of a block of kReduceThreads.
__device__ inline Largest block_largest(Largest best) {
  using Partial = Largest[kReduceWarps];
  PERCHERON_SHARED(Partial, partial);
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    const Largest other{__shfl_xor_sync(kAllLanes, best.value, distance),
                        __shfl_xor_sync(kAllLanes, best.index, distance)};
    best = larger_of(best, other);
  }
  if (threadIdx.x % kWarpThreads == 0) partial[threadIdx.x / kWarpThreads] = best;
  __syncthreads();
  best = partial[0];
  for (int i = 1; i < kReduceWarps; ++i) best = larger_of(best, partial[i]);
  __syncthreads();
  return best;
}

}  // namespace percheron::cuda
