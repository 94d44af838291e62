#pragma once

#include <string_view>

#include "base/status.h"
#include "kernels/cpu/kernel_table.h"

namespace percheron::cpu {

/// An instruction set that the kernels were compiled for.
struct Isa {
  std::string_view name;  // "generic", "avx2", "avx512", "avx512bf16"
  const KernelTable* kernels;
  bool native_bf16;  // bf16 products run in the processor's own instructions, by oneDNN
};

/// The best instruction set of this processor, or the one that the environment variable
/// PERCHERON_CPU_ISA names (for tests). native_bf16 where that is faster, or named.
Result<Isa> select_isa();

}  // namespace percheron::cpu
