// The places of packed documents, as libraries of attention take them.

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/kernels.h"

namespace percheron::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void packed_offsets_kernel(PackedOffsets a) {
  const int64_t d = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (d >= a.places) return;
  const int32_t begin = a.documents[d < a.count ? d : a.count];
  a.lengths[d] = d < a.count ? a.documents[d + 1] - begin : 0;
  for (int i = 0; i < 4; ++i) {
    a.offsets[i][d] = static_cast<int32_t>(begin * a.strides[i]);
  }
}

}  // namespace

void packed_offsets(Queue& queue, const PackedOffsets& a) {
  launch(queue, packed_offsets_kernel, {(a.places + kThreads - 1) / kThreads}, kThreads, a);
}

}  // namespace percheron::cuda
