#include "kernels/cuda/emulator/machine.h"

#include <algorithm>
#include <atomic>
#include <string>

namespace percheron::emulator {
namespace {

constexpr uint64_t kBlockThreadsMax = 1024;
constexpr unsigned kBlockZMax = 64;
constexpr unsigned kGridXMax = 0x7fffffff, kGridYzMax = 65535;
constexpr size_t kSharedBytesMax = 232448;  // sm_90, after opting in

uint64_t volume(Dim3 d) { return uint64_t{d.x} * d.y * d.z; }

Status check_shape(const LaunchShape& shape) {
  const Dim3 grid = shape.grid, block = shape.block;
  const bool fits = volume(grid) > 0 && volume(block) > 0 && volume(block) <= kBlockThreadsMax &&
                    block.z <= kBlockZMax && grid.x <= kGridXMax && grid.y <= kGridYzMax &&
                    grid.z <= kGridYzMax && shape.dynamic_shared_bytes <= kSharedBytesMax;
  if (fits) return ok_status();
  return internal_error("a launch of " + std::to_string(volume(grid)) + " blocks of " +
                        std::to_string(volume(block)) + " threads with " +
                        std::to_string(shape.dynamic_shared_bytes) +
                        " bytes of shared memory is beyond CUDA's limits");
}

}  // namespace

/// One launch, shared by the workers.
struct Machine::Job {
  Block::Launch launch;
  uint64_t blocks = 0;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::string error;  // guarded by mutex
  char begin_order = 0, end_order = 0;
};

Machine::Machine(const MachineOptions& options) : options_(options) {
  for (int i = 1; i < options.workers; ++i) threads_.emplace_back([this] { work(); });
}

Machine::~Machine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Machine::work() {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || (job_ != nullptr && jobs_ != seen); });
    if (stopping_) return;
    seen = jobs_;
    Job& job = *job_;
    ++busy_;
    lock.unlock();
    run_blocks(job);
    lock.lock();
    if (--busy_ == 0) changed_.notify_all();
  }
}

void Machine::run_blocks(Job& job) {
  thread_local StackPool stacks;
  const IgnoreAccesses ignore;
  Block block(job.launch);
  const Dim3 grid = job.launch.grid;
  while (!job.failed) {
    uint64_t i = job.next++;
    if (i >= job.blocks) return;
    if (job.launch.schedule == Schedule::kReverse) i = job.blocks - 1 - i;
    const Dim3 index{static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                     static_cast<unsigned>(i / grid.x / grid.y)};
    const std::string error = block.run(index, stacks);
    if (error.empty()) continue;
    const std::lock_guard lock(job.mutex);
    if (job.error.empty()) job.error = error;
    job.failed = true;
  }
}

Status Machine::run(const LaunchShape& shape, const std::function<void()>& kernel) {
  PERCHERON_RETURN_IF_ERROR(check_shape(shape));
  const std::lock_guard launch_lock(launches_);
  Job job;
  job.launch = {.grid = shape.grid,
                .block = shape.block,
                .dynamic_shared_bytes = shape.dynamic_shared_bytes,
                .kernel = &kernel,
                .schedule = options_.schedule,
                .seed = options_.seed + jobs_,
                .begin_order = &job.begin_order,
                .end_order = &job.end_order};
  job.blocks = volume(shape.grid);
  release(&job.begin_order);
  const bool shared = job.blocks > 1 && !threads_.empty();  // else nobody else need wake
  {
    const std::lock_guard lock(mutex_);
    ++jobs_;
    if (shared) job_ = &job;
  }
  if (shared) changed_.notify_all();
  run_blocks(job);
  {
    std::unique_lock lock(mutex_);
    job_ = nullptr;
    changed_.wait(lock, [&] { return busy_ == 0; });
  }
  acquire(&job.end_order);
  return job.error.empty() ? ok_status() : internal_error(job.error);
}

}  // namespace percheron::emulator
