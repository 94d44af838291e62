#include "kernels/cpu/isa.h"

#include <cstdlib>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

namespace percheron::cpu {

namespace generic {
const KernelTable& kernel_table();
}
#ifdef PERCHERON_X86
namespace avx2 {
const KernelTable& kernel_table();
}
namespace avx512 {
const KernelTable& kernel_table();
}
namespace avx512bf16 {
const KernelTable& kernel_table();
}
#endif

namespace {

struct Candidate {
  std::string_view name;
  bool supported;
  const KernelTable& (*kernels)();
};

#ifdef PERCHERON_X86
/// Whether products of bf16 are faster than those of f32. Intel's cores multiply bf16 at half the
/// rate of f32 unless they do it in AMX tiles; AMD's at twice the rate (docs/decisions/0006).
bool multiplies_bf16_fast() {
  const auto bits = [](dnnl::cpu_isa isa) { return static_cast<unsigned>(isa); };
  const unsigned amx = bits(dnnl::cpu_isa::avx512_core_amx);
  const bool has_amx = (bits(dnnl::get_effective_cpu_isa()) & amx) == amx;  // or what builds on it
  return has_amx || __builtin_cpu_is("amd");
}
#else
bool multiplies_bf16_fast() { return false; }
#endif

}  // namespace

Result<Isa> select_isa() {
#ifdef PERCHERON_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const bool avx512bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
#endif
  const Candidate candidates[] = {
#ifdef PERCHERON_X86
      {"avx512bf16", avx512bf16, avx512bf16::kernel_table},
      {"avx512", avx512, avx512::kernel_table},
      {"avx2", avx2, avx2::kernel_table},
#endif
      {"generic", true, generic::kernel_table},
  };
  const char* wanted = std::getenv("PERCHERON_CPU_ISA");
  std::string supported;
  for (const Candidate& candidate : candidates) {
    if (!candidate.supported) continue;
    const bool best = wanted == nullptr || *wanted == '\0';
    if (best || candidate.name == wanted) {
      const bool bf16 = candidate.name == "avx512bf16" && (!best || multiplies_bf16_fast());
      return Isa{candidate.name, &candidate.kernels(), bf16};
    }
    supported += ' ';
    supported += candidate.name;
  }
  return invalid_argument("PERCHERON_CPU_ISA is '" + std::string(wanted) +
                          "'; this processor has:" + supported);
}

}  // namespace percheron::cpu
