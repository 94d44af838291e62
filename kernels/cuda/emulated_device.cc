#include "kernels/cuda/emulated_device.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/log.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/emulator/device_memory.h"
#include "kernels/cuda/emulator/machine.h"
#include "kernels/cuda/emulator/work_queue.h"
#include "kernels/cuda/host_attention.h"
#include "kernels/cuda/host_products.h"
#include "kernels/cuda/kernel_stream.h"
#include "kernels/upload_ring.h"

namespace percheron {
namespace {

using emulator::DeviceMemory;
using emulator::Machine;
using emulator::MemoryGuard;
using emulator::QueuePoint;
using emulator::Schedule;
using emulator::Timeline;
using emulator::WorkQueue;

constexpr size_t kAlignmentBytes = 64;

/// Frees device memory as CUDA does: after all work that was put into any stream.
class EmulatedMemory final : public Buffer::Owner {
 public:
  EmulatedMemory(DeviceMemory& memory, Timeline& timeline) : memory_(memory), timeline_(timeline) {}
  void release(void* data, size_t bytes) override {
    timeline_.finish_all();
    memory_.release(data, bytes);
  }

 private:
  DeviceMemory& memory_;
  Timeline& timeline_;
};

/// The same for pinned memory of the host.
class PinnedMemory final : public Buffer::Owner {
 public:
  explicit PinnedMemory(Timeline& timeline) : timeline_(timeline) {}
  void release(void* data, size_t) override {
    timeline_.finish_all();
    std::free(data);
  }

 private:
  Timeline& timeline_;
};

class EmulatedEvent final : public Event {
 public:
  explicit EmulatedEvent(DeviceCounters& counters) : counters_(counters) {}
  Status wait() override {
    ++counters_.waits;
    return WorkQueue::finish(point);  // As of a GPU, where a kernel's error is the device's.
  }
  QueuePoint point;

 private:
  DeviceCounters& counters_;
};

class EmulatedGraph final : public Graph {
 public:
  EmulatedGraph(std::shared_ptr<WorkQueue> queue, std::shared_ptr<const WorkQueue::Recording> work)
      : queue_(std::move(queue)), work_(std::move(work)) {}
  const std::shared_ptr<const WorkQueue::Recording>& work() const { return work_; }

 private:
  std::shared_ptr<WorkQueue> queue_;  // its work belongs to
  std::shared_ptr<const WorkQueue::Recording> work_;
};

class EmulatedStream final : public cuda::KernelStream {
 public:
  EmulatedStream(std::shared_ptr<WorkQueue> work, const DeviceMemory& memory, Device& device,
                 bool graphs)
      : KernelStream(work.get()),
        work_(std::move(work)),
        memory_(memory),
        device_(device),
        graphs_(graphs),
        ring_(device) {}
  /// Destroying a stream does not stop its work, whose errors nobody asks for.
  ~EmulatedStream() override { (void)work_->finish(); }

  void copy(void* destination, const void* source, size_t bytes) {
    ++queue().launches;
    work_->copy(destination, source, bytes);
  }
  void upload(void* destination, const void* source, size_t bytes) {
    const Status status = ring_.put(*this, destination, source, bytes);
    if (!status.ok()) fail(status);
  }
  Status wait_idle() override {
    ++device_.counters().waits;
    const Status done = work_->finish();
    ring_.all_done();
    if (!done.ok()) fail(done);
    return take_error();
  }
  void record(Event& event) override { static_cast<EmulatedEvent&>(event).point = work_->point(); }
  void wait_for(const Event& event) override {
    work_->wait_for(static_cast<const EmulatedEvent&>(event).point);
  }
  Status begin_recording() override {
    if (!graphs_) return Stream::begin_recording();
    PERCHERON_RETURN_IF_ERROR(work_->begin_recording());
    set_errors_apart();
    return ok_status();
  }
  Result<std::unique_ptr<Graph>> end_recording() override {
    auto recorded = work_->end_recording();
    PERCHERON_RETURN_IF_ERROR(errors_of_recording());
    PERCHERON_RETURN_IF_ERROR(recorded.status());
    return std::unique_ptr<Graph>(std::make_unique<EmulatedGraph>(work_, std::move(*recorded)));
  }
  void launch(Graph& graph) override {
    ++queue().launches;
    work_->replay(static_cast<EmulatedGraph&>(graph).work());
  }
  void check_operands(std::initializer_list<ConstTensorView> operands) const override {
    for (const ConstTensorView& x : operands) {
      PERCHERON_CHECK(!x.present() || x.elements() == 0 || memory_.contains(x.data(), extent(x)),
                      describe(x) + " is not in the device's memory");
    }
  }

 private:
  /// From the first byte to the last.
  static size_t extent(const ConstTensorView& x) {
    int64_t last = 0;
    for (int i = 0; i < x.rank(); ++i) last += (x.dim(i) - 1) * x.stride(i);
    return static_cast<size_t>(last + 1) * dtype_bytes(x.dtype());
  }

  std::shared_ptr<WorkQueue> work_;
  const DeviceMemory& memory_;
  Device& device_;
  const bool graphs_;
  UploadRing ring_;
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

/// Times work in a queue that is as late as a GPU's.
class EmulatedTimer final : public cuda::QueueTimer {
 public:
  Result<double> time_ms(cuda::Queue& queue, const std::function<Status()>& work) override {
    auto& in = *static_cast<WorkQueue*>(queue.stream);
    (void)WorkQueue::finish(in.point());
    const auto begin = std::chrono::steady_clock::now();
    PERCHERON_RETURN_IF_ERROR(work());
    (void)WorkQueue::finish(in.point());
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

/// PERCHERON_EMULATED_GUARD, for tests: 1 makes the host's access to device memory a fault.
Result<MemoryGuard> memory_guard() {
  const char* chosen = std::getenv("PERCHERON_EMULATED_GUARD");
  const std::string name = chosen == nullptr || *chosen == 0 ? "0" : chosen;
  if (name == "0") return MemoryGuard::kPlain;
  if (name == "1") return MemoryGuard::kGuarded;
  return invalid_argument("PERCHERON_EMULATED_GUARD is '" + name + "'; there are 0 and 1");
}

/// PERCHERON_EMULATED_MEMORY_BYTES, for tests: the size of a card's memory. 0 = the host's.
Result<uint64_t> card_memory_bytes() {
  const char* chosen = std::getenv("PERCHERON_EMULATED_MEMORY_BYTES");
  if (chosen == nullptr || *chosen == 0) return uint64_t{0};
  const std::string_view text = chosen;
  uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), bytes);
  if (error == std::errc() && end == text.end() && bytes > 0) return bytes;
  return invalid_argument("PERCHERON_EMULATED_MEMORY_BYTES is '" + std::string(text) +
                          "'; it is a number of bytes");
}

struct EmulationOptions {
  int threads;
  Schedule schedule;
  MemoryGuard guard;
  uint64_t card_memory_bytes;
  AttentionKernel causal_attention;
  bool graphs;
};

class EmulatedDevice final : public Device {
 public:
  EmulatedDevice(DeviceId id, const EmulationOptions& options)
      : machine_({.workers = options.threads, .schedule = options.schedule}),
        memory_(options.guard, options.card_memory_bytes > 0 ? options.card_memory_bytes
                                                             : physical_memory_bytes()),
        timeline_(machine_, memory_),
        graphs_(options.graphs),
        ops_(std::make_unique<cuda::HostProducts>(),
             causal_attention(id, options.causal_attention)) {
    info_.id = id;
    info_.description = "CUDA kernels emulated on the processor";
    info_.threads = options.threads;
    info_.native_bf16 = true;
    info_.own_memory = options.card_memory_bytes > 0;
    info_.graphs = true;
    info_.memory_bytes = info_.free_bytes = memory_.bytes_free();
  }

  const DeviceInfo& info() const override { return info_; }
  const Ops& ops() const override { return ops_; }
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<EmulatedStream>(timeline_.make_queue(), memory_, *this, graphs_);
  }
  std::unique_ptr<Event> make_event() override {
    return std::make_unique<EmulatedEvent>(counters_);
  }
  Result<Buffer> allocate(size_t bytes) override {
    ++counters_.allocations;
    timeline_.refuse_recordings("getting memory");
    const Result<void*> data = memory_.allocate(bytes);
    if (!data.ok()) return data.status().with_context("memory of " + to_string(info_.id));
    return Buffer(*data, bytes, owner_);
  }
  Result<Buffer> allocate_host(size_t bytes) override {
    ++counters_.host_allocations;
    void* data = nullptr;
    if (posix_memalign(&data, kAlignmentBytes, std::max<size_t>(bytes, 1)) != 0) {
      return resource_exhausted("the host has no " + std::to_string(bytes) + " bytes of memory");
    }
    return Buffer(data, bytes, host_owner_);
  }
  void bind_thread() override {}
  void copy_bytes(Stream& stream, void* destination, const void* source, size_t bytes) override {
    copy_emulated(stream, destination, source, bytes);
  }
  void upload_bytes(Stream& stream, void* destination, const void* source, size_t bytes) override {
    static_cast<EmulatedStream&>(stream).upload(destination, source, bytes);
  }

 private:
  DeviceInfo info_;
  Machine machine_;
  DeviceMemory memory_;
  Timeline timeline_;
  const bool graphs_;
  cuda::CudaOps ops_;
  std::shared_ptr<EmulatedMemory> owner_ = std::make_shared<EmulatedMemory>(memory_, timeline_);
  std::shared_ptr<PinnedMemory> host_owner_ = std::make_shared<PinnedMemory>(timeline_);
};

}  // namespace

void copy_emulated(Stream& stream, void* destination, const void* source, size_t bytes) {
  if (bytes > 0) static_cast<EmulatedStream&>(stream).copy(destination, source, bytes);
}

Result<std::unique_ptr<Device>> make_emulated_device(DeviceId id, const DeviceOptions& options) {
  PERCHERON_ASSIGN_OR_RETURN(const Schedule order, schedule());
  PERCHERON_ASSIGN_OR_RETURN(const MemoryGuard guard, memory_guard());
  PERCHERON_ASSIGN_OR_RETURN(const uint64_t bytes, card_memory_bytes());
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int threads = options.threads > 0 ? options.threads : cores;
  return std::unique_ptr<Device>(std::make_unique<EmulatedDevice>(
      id,
      EmulationOptions{threads, order, guard, bytes, options.causal_attention, options.graphs}));
}

}  // namespace percheron
