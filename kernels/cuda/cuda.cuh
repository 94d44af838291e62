#pragma once

// Where the kernels meet their two worlds: nvcc, or a host compiler with the emulator. Everything
// else in a .cu file is the same for both.

#include <cstdint>

#include "kernels/cuda/queue.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
/// An object in the block's shared memory, of a type without constructor; uninitialised.
#define PERCHERON_SHARED(Type, name) __shared__ Type name
/// The bytes that the launch asked for, aligned to 128, as a pointer to Type.
#define PERCHERON_DYNAMIC_SHARED(Type, name)                     \
  extern __shared__ __align__(128) unsigned char shared_bytes[]; \
  Type* name = reinterpret_cast<Type*>(shared_bytes)
#else
#include "kernels/cuda/emulator/cuda_language.h"
#include "kernels/cuda/emulator/work_queue.h"
#endif

namespace percheron::cuda {

constexpr int kWarpThreads = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

/// Blocks of a launch, and the bytes of shared memory that each has beside its PERCHERON_SHARED.
struct Grid {
  int64_t x, y = 1;
  size_t dynamic_shared_bytes = 0;
};

/// Puts kernel(arguments...) into the queue for each thread of the grid; nothing for an empty grid.
/// The first error stays in the queue. In emulation a queue without a stream only plans: nothing.
template <class... Parameters, class... Arguments>
void launch(Queue& queue, void (*kernel)(Parameters...), Grid grid, int threads,
            Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0) return;
  const unsigned x = static_cast<unsigned>(grid.x), y = static_cast<unsigned>(grid.y);
  const unsigned block = static_cast<unsigned>(threads);
  ++queue.launches;
#ifdef __CUDACC__
  constexpr size_t kSharedBytesUnasked = 48 << 10;
  if (grid.dynamic_shared_bytes > kSharedBytesUnasked) {
    // An error stays, and is found after the launch, which fails too.
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.dynamic_shared_bytes));
  }
  kernel<<<dim3(x, y), dim3(block), grid.dynamic_shared_bytes,
           static_cast<cudaStream_t>(queue.stream)>>>(arguments...);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess && queue.error.empty()) {
    const char* name = nullptr;
    if (cudaFuncGetName(&name, reinterpret_cast<const void*>(kernel)) != cudaSuccess) name = "?";
    queue.error = std::string("kernel ") + name +
                  " could not be launched: " + cudaGetErrorString(error) + " (" +
                  cudaGetErrorName(error) + ")";
  }
#else
  if (queue.stream == nullptr) return;
  static_cast<emulator::WorkQueue*>(queue.stream)
      ->launch({{x, y}, {block}, grid.dynamic_shared_bytes}, [=] { kernel(arguments...); });
#endif
}

}  // namespace percheron::cuda
