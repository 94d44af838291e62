// A kernel that can't keep its values in registers, for a test that such kernels are refused.

namespace percheron {

/// 32 registers per thread for 96 values, each of which is needed to the end.
__global__ void __launch_bounds__(1024, 2) spill(float* x) {
  float values[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) values[i] = x[i * 1024 + threadIdx.x];
#pragma unroll
  for (int round = 1; round < 4; ++round) {
#pragma unroll
    for (int i = 0; i < 96; ++i) values[i] += values[(i + 31 * round) % 96] * values[95 - i];
  }
#pragma unroll
  for (int i = 0; i < 96; ++i) x[i * 1024 + threadIdx.x] = values[i];
}

}  // namespace percheron
