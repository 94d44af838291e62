#include "kernels/cuda/emulated_device.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <thread>

#include "base/log.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/emulator/machine.h"
#include "kernels/cuda/host_attention.h"
#include "kernels/cuda/host_products.h"
#include "kernels/cuda/kernel_stream.h"

namespace percheron {
namespace {

using emulator::Machine;
using emulator::Schedule;

constexpr size_t kAlignmentBytes = 64;
constexpr int kPoison = 0xff;  // NaN as any float

/// Each piece is an allocation of exactly its bytes, so that AddressSanitizer sees whoever goes
/// past it, and is NaN at first.
class EmulatedMemory final : public Buffer::Owner {
 public:
  static Result<void*> allocate(size_t bytes) {
    void* data = nullptr;
    if (posix_memalign(&data, kAlignmentBytes, std::max<size_t>(bytes, 1)) != 0) {
      return resource_exhausted("the host has no " + std::to_string(bytes) + " bytes of memory");
    }
    std::memset(data, kPoison, bytes);
    return data;
  }
  void release(void* data, size_t) override { std::free(data); }
};

class EmulatedStream final : public cuda::KernelStream {
 public:
  explicit EmulatedStream(Machine& machine) : KernelStream(&machine) {}
  Status wait_idle() override {
    collect_error();
    return take_error();
  }
};

uint64_t physical_memory_bytes() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGE_SIZE);
  if (pages < 1 || page_bytes < 1) return std::numeric_limits<uint64_t>::max();
  return static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes);
}

/// PERCHERON_EMULATOR_SCHEDULE, for tests: the order in which threads run must change nothing.
Result<Schedule> schedule() {
  const char* chosen = std::getenv("PERCHERON_EMULATOR_SCHEDULE");
  const std::string name = chosen == nullptr || *chosen == 0 ? "forward" : chosen;
  if (name == "forward") return Schedule::kForward;
  if (name == "reverse") return Schedule::kReverse;
  if (name == "shuffled") return Schedule::kShuffled;
  if (name == "round_robin") return Schedule::kRoundRobin;
  return invalid_argument("PERCHERON_EMULATOR_SCHEDULE is '" + name +
                          "'; there are forward, reverse, shuffled and round_robin");
}

/// The emulator has no queue: work is done when it has been put.
class EmulatedTimer final : public cuda::QueueTimer {
 public:
  Result<double> time_ms(cuda::Queue&, const std::function<Status()>& work) override {
    const auto begin = std::chrono::steady_clock::now();
    PERCHERON_RETURN_IF_ERROR(work());
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
        .count();
  }
};

cuda::CausalAttention::Parts causal_attention(DeviceId id, AttentionKernel wanted) {
  const auto open = []() -> Result<std::unique_ptr<cuda::AttentionLibrary>> {
    return std::unique_ptr<cuda::AttentionLibrary>(std::make_unique<cuda::HostAttention>());
  };
  const auto tell = [id](const std::string& line) { log_info("{}: {}", to_string(id), line); };
  return {wanted, open, std::make_unique<EmulatedTimer>(), tell};
}

class EmulatedDevice final : public Device {
 public:
  EmulatedDevice(DeviceId id, int threads, Schedule schedule, AttentionKernel attention)
      : machine_({.workers = threads, .schedule = schedule}),
        ops_(std::make_unique<cuda::HostProducts>(), causal_attention(id, attention)) {
    info_.id = id;
    info_.description = "CUDA kernels emulated on the processor";
    info_.threads = threads;
    info_.native_bf16 = true;
    info_.memory_bytes = physical_memory_bytes();
  }

  const DeviceInfo& info() const override { return info_; }
  const Ops& ops() const override { return ops_; }
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<EmulatedStream>(machine_);
  }
  Result<Buffer> allocate(size_t bytes) override {
    if (bytes > info_.memory_bytes) {
      return resource_exhausted(std::to_string(bytes) +
                                " bytes are more than the host's memory of " +
                                std::to_string(info_.memory_bytes));
    }
    PERCHERON_ASSIGN_OR_RETURN(void* data, EmulatedMemory::allocate(bytes));
    return Buffer(data, bytes, memory_);
  }
  void bind_thread() override {}
  void copy_bytes(Stream&, void* destination, const void* source, size_t bytes) override {
    if (bytes > 0) std::memcpy(destination, source, bytes);
  }

 private:
  DeviceInfo info_;
  Machine machine_;
  cuda::CudaOps ops_;
  std::shared_ptr<EmulatedMemory> memory_ = std::make_shared<EmulatedMemory>();
};

}  // namespace

Result<std::unique_ptr<Device>> make_emulated_device(DeviceId id, const DeviceOptions& options) {
  PERCHERON_ASSIGN_OR_RETURN(const Schedule order, schedule());
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int threads = options.threads > 0 ? options.threads : cores;
  return std::unique_ptr<Device>(
      std::make_unique<EmulatedDevice>(id, threads, order, options.causal_attention));
}

}  // namespace percheron
