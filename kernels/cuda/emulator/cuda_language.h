#pragma once

// CUDA's language for a host compiler: what a .cu file of the project may use, in the emulator's
// terms. Names and meaning are those of the CUDA C++ programming guide.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/emulator/block.h"

// NOLINTBEGIN: CUDA's names

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx (::percheron::emulator::this_thread().index)
#define blockIdx (::percheron::emulator::this_thread().block->index())
#define blockDim (::percheron::emulator::this_thread().block->launch().block)
#define gridDim (::percheron::emulator::this_thread().block->launch().grid)

/// An object in the block's shared memory, of a type without constructor; NaN bytes at first.
#define PERCHERON_SHARED(Type, name)    \
  static constexpr char name##_key = 0; \
  Type& name = ::percheron::emulator::shared_object<Type>(&name##_key)

/// The bytes that the launch asked for, as a pointer to Type.
#define PERCHERON_DYNAMIC_SHARED(Type, name) \
  Type* name = static_cast<Type*>(::percheron::emulator::this_thread().block->dynamic_shared())

namespace percheron::emulator {

template <class T>
T& shared_object(const void* key) {
  static_assert(std::is_trivially_default_constructible_v<T>);
  return *static_cast<T*>(this_thread().block->shared(key, sizeof(T)));
}

/// What lane `lane` handed in; NaN bytes if it handed in nothing.
template <class T>
T deposit_of(const Deposits& deposits, unsigned lane) {
  T value;
  if ((deposits.lanes >> lane & 1) != 0) {
    std::memcpy(&value, deposits.bytes[lane], sizeof value);
  } else {
    std::memset(&value, 0xff, sizeof value);
  }
  return value;
}

template <class T>
T shuffle(unsigned mask, T value, unsigned source, const char* operation) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  const Deposits& deposits = this_thread().block->exchange(mask, operation, &value, sizeof value,
                                                           Block::Memory::kNotOrdered);
  return deposit_of<T>(deposits, source % kWarpThreads);
}

/// *p = f(*p) at once; what it was.
template <class T, class F>
T atomic_update(T* p, F f) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  std::atomic_ref<T> value(*p);
  T before = value.load(std::memory_order_relaxed);
  while (!value.compare_exchange_weak(before, f(before), std::memory_order_relaxed)) {
  }
  return before;
}

}  // namespace percheron::emulator

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  percheron::emulator::this_thread().block->barrier("__syncthreads", {file, line}, 0);
}
inline int __syncthreads_count(int predicate, const char* file = __builtin_FILE(),
                               int line = __builtin_LINE()) {
  return percheron::emulator::this_thread().block->barrier("__syncthreads_count", {file, line},
                                                           predicate != 0 ? 1 : 0);
}
inline int __syncthreads_or(int predicate, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  return percheron::emulator::this_thread().block->barrier("__syncthreads_or", {file, line},
                                                           predicate != 0 ? 1 : 0) != 0
             ? 1
             : 0;
}
inline void __syncwarp(unsigned mask = ~0u) {
  percheron::emulator::this_thread().block->exchange(
      mask, "__syncwarp", nullptr, 0, percheron::emulator::Block::Memory::kOrdersMemory);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = static_cast<int>(percheron::emulator::this_thread().lane());
  const int first = lane & ~(width - 1);
  return percheron::emulator::shuffle(
      mask, value, static_cast<unsigned>(first | (source & (width - 1))), "__shfl_sync");
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  const int lane = static_cast<int>(percheron::emulator::this_thread().lane());
  const int other = lane ^ lane_mask;
  // A lane beyond the caller's segment gives the caller's own value.
  const int source = (other & ~(width - 1)) > (lane & ~(width - 1)) ? lane : other;
  return percheron::emulator::shuffle(mask, value, static_cast<unsigned>(source),
                                      "__shfl_xor_sync");
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = static_cast<int>(percheron::emulator::this_thread().lane());
  const int other = lane + static_cast<int>(delta);
  const int source = other > (lane | (width - 1)) ? lane : other;
  return percheron::emulator::shuffle(mask, value, static_cast<unsigned>(source),
                                      "__shfl_down_sync");
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = static_cast<int>(percheron::emulator::this_thread().lane());
  const int other = lane - static_cast<int>(delta);
  const int source = other < (lane & ~(width - 1)) ? lane : other;
  return percheron::emulator::shuffle(mask, value, static_cast<unsigned>(source), "__shfl_up_sync");
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  using namespace percheron::emulator;
  const int vote = predicate != 0 ? 1 : 0;
  const Deposits& deposits = this_thread().block->exchange(mask, "__ballot_sync", &vote,
                                                           sizeof vote, Block::Memory::kNotOrdered);
  unsigned result = 0;
  for (unsigned lane = 0; lane < kWarpThreads; ++lane) {
    if ((deposits.lanes >> lane & 1) != 0 && deposit_of<int>(deposits, lane) != 0) {
      result |= 1u << lane;
    }
  }
  return result;
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate == 0 ? 1 : 0) == 0 ? 1 : 0;
}
inline unsigned __activemask() { return percheron::emulator::this_thread().block->alive_lanes(); }

template <class T>
T atomicAdd(T* p, T value) {
  return percheron::emulator::atomic_update(p, [value](T old) { return old + value; });
}
template <class T>
T atomicMax(T* p, T value) {
  return percheron::emulator::atomic_update(p,
                                            [value](T old) { return old > value ? old : value; });
}
template <class T>
T atomicMin(T* p, T value) {
  return percheron::emulator::atomic_update(p,
                                            [value](T old) { return old < value ? old : value; });
}
template <class T>
T atomicExch(T* p, T value) {
  return percheron::emulator::atomic_update(p, [value](T) { return value; });
}
template <class T>
T atomicCAS(T* p, T compare, T value) {
  return percheron::emulator::atomic_update(
      p, [compare, value](T old) { return old == compare ? value : old; });
}

// NOLINTEND
