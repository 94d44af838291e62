#pragma once

// Instructions of the tensor cores and of asynchronous copies, which CUDA C++ has no names for, in
// the subset of sm_80; the emulator's twins of them.

#include "kernels/cuda/cuda.cuh"

#ifndef __CUDACC__
#include "kernels/cuda/emulator/warp_matrix.h"
#endif

namespace percheron::cuda {

/// d += a b over a warp: a [16, 16] and b [16, 8] bf16, d [16, 8] f32, in fragments of the PTX
/// ISA's mma.m16n8k16.
__device__ inline void multiply_fragments(float (&d)[4], const uint32_t (&a)[4],
                                          const uint32_t (&b)[2]) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulator::mma_m16n8k16(d, a, b);
#endif
}

/// Four 8 x 8 matrices of bf16 from shared memory; lane i gives the address of row i % 8 of matrix
/// i / 8.
__device__ inline void load_fragments(uint32_t (&registers)[4], const uint16_t* row) {
#ifdef __CUDACC__
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
#else
  emulator::load_matrices(registers, row, emulator::Transposed::kNo);
#endif
}
/// As load_fragments(), each matrix transposed.
__device__ inline void load_fragments_transposed(uint32_t (&registers)[4], const uint16_t* row) {
#ifdef __CUDACC__
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
#else
  emulator::load_matrices(registers, row, emulator::Transposed::kYes);
#endif
}

/// Copies 16 bytes to shared memory, done when their group is waited for. Both aligned to 16 bytes.
__device__ inline void copy_async(void* destination, const void* source) {
#ifdef __CUDACC__
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(destination));
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;\n" ::"r"(address), "l"(source) : "memory");
#else
  emulator::this_thread().copies.add(destination, source, 16);
#endif
}
/// Closes the thread's group of copies.
__device__ inline void commit_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#else
  emulator::this_thread().copies.commit();
#endif
}
/// Waits until at most `Groups` of the thread's groups are under way.
template <int Groups>
__device__ inline void wait_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;\n" ::"n"(Groups) : "memory");
#else
  emulator::this_thread().copies.wait(Groups);
#endif
}

}  // namespace percheron::cuda
