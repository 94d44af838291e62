#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/emulator/block.h"

namespace percheron::emulator {

struct MachineOptions {
  int workers = 1;  // OS threads that run blocks, the caller's included
  Schedule schedule = Schedule::kForward;
  uint64_t seed = 1;  // of kShuffled
};

/// Grid and block of a launch. The limits are those of CUDA.
struct LaunchShape {
  Dim3 grid, block;
  size_t dynamic_shared_bytes = 0;
};

/// Runs CUDA kernels on the processor: each block on one of the workers, its threads as fibers.
/// Besides results it checks what a GPU does not: barriers and warp-wide operations that threads
/// reach in different places, deadlocks, reads of shared memory that nobody wrote (NaN); and under
/// sanitizers every access of a kernel, races too. Timing, caches and weak memory order between
/// blocks are not emulated.
class Machine {
 public:
  explicit Machine(const MachineOptions& options);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  int workers() const { return static_cast<int>(threads_.size()) + 1; }

  /// Calls kernel() once per thread of the grid; returns when all have ended. kInternal for a
  /// launch that a GPU refuses and for the first error in the kernel. Any OS thread; one launch at
  /// a time.
  Status run(const LaunchShape& shape, const std::function<void()>& kernel);

 private:
  struct Job;

  void work();
  void run_blocks(Job& job);

  const MachineOptions options_;
  std::mutex launches_;  // held by the launch that runs

  std::mutex mutex_;
  std::condition_variable changed_;
  Job* job_ = nullptr;
  uint64_t jobs_ = 0;
  size_t busy_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace percheron::emulator
