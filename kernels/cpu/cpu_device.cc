#include "kernels/cpu/cpu_device.h"

#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/immediate_stream.h"

#ifdef PERCHERON_X86
#include <immintrin.h>
#endif

namespace percheron {
namespace {

constexpr size_t kAlignmentBytes = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t rounded_up(size_t bytes, size_t unit) {
  return std::max(unit, (bytes + unit - 1) / unit * unit);
}

/// The host's memory: small pieces aligned to a cache line, large ones to a huge page.
class HostMemory final : public Buffer::Owner {
 public:
  static Result<void*> allocate(size_t bytes) {
    const size_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : kAlignmentBytes;
    const size_t size = rounded_up(bytes, alignment);
    void* data = std::aligned_alloc(alignment, size);
    if (data == nullptr) {
      return resource_exhausted("the host has no " + std::to_string(bytes) + " bytes of memory");
    }
    // Only advice: without huge pages everything works, with more address translation.
    if (alignment == kHugePageBytes) (void)madvise(data, size, MADV_HUGEPAGE);
    return data;
  }
  void release(void* data, size_t) override { std::free(data); }
};

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t name = line.find_first_not_of(": \t", line.find(':'));
    if (name != std::string::npos) return line.substr(name);
  }
  return "processor";
}

// The largest number where the system does not say: then allocations alone tell.
uint64_t physical_memory_bytes() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGE_SIZE);
  if (pages < 1 || page_bytes < 1) return std::numeric_limits<uint64_t>::max();
  return static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes);
}

class CpuDevice final : public Device {
 public:
  CpuDevice(DeviceId id, const DeviceOptions& options, const cpu::Isa& isa) : ops_(isa) {
    info_.id = id;
    info_.description = processor_name() + ", " + std::string(isa.name);
    info_.threads = options.threads > 0 ? options.threads : omp_get_num_procs();
    info_.native_bf16 = isa.native_bf16;
    info_.immediate = true;
    info_.memory_bytes = info_.free_bytes = physical_memory_bytes();
  }

  const DeviceInfo& info() const override { return info_; }
  const Ops& ops() const override { return ops_; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<ImmediateStream>(); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<ImmediateEvent>(); }

  Result<Buffer> allocate(size_t bytes) override {
    ++counters_.allocations;
    return take(bytes);
  }
  Result<Buffer> allocate_host(size_t bytes) override {
    ++counters_.host_allocations;
    return take(bytes);
  }
  void bind_thread() override {
    omp_set_dynamic(0);
    omp_set_num_threads(info_.threads);
#ifdef PERCHERON_X86
    // Denormals cost a hundred cycles each and carry nothing here: flush them, in every team
    // thread.
#pragma omp parallel num_threads(info_.threads)
    _mm_setcsr(_mm_getcsr() | _MM_FLUSH_ZERO_ON | 0x0040u /* denormals are zero */);
#endif
  }

  void copy_bytes(Stream&, void* destination, const void* source, size_t bytes) override {
    if (bytes > 0) std::memcpy(destination, source, bytes);
  }

 private:
  Result<Buffer> take(size_t bytes) {
    if (bytes > info_.memory_bytes) {
      return resource_exhausted(std::to_string(bytes) +
                                " bytes are more than the host's memory of " +
                                std::to_string(info_.memory_bytes));
    }
    PERCHERON_ASSIGN_OR_RETURN(void* data, HostMemory::allocate(bytes));
    return Buffer(data, bytes, memory_);
  }

  DeviceInfo info_;
  cpu::CpuOps ops_;
  std::shared_ptr<HostMemory> memory_ = std::make_shared<HostMemory>();
};

}  // namespace

Result<std::unique_ptr<Device>> make_cpu_device(DeviceId id, const DeviceOptions& options) {
  PERCHERON_ASSIGN_OR_RETURN(const cpu::Isa isa, cpu::select_isa());
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(id, options, isa));
}

}  // namespace percheron
