#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/emulator/async_copy.h"
#include "kernels/cuda/emulator/fiber.h"

namespace percheron::emulator {

constexpr unsigned kWarpThreads = 32;

/// As CUDA's uint3 and dim3.
struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

/// The order in which a block's threads run. The first three are greedy: a warp runs until all its
/// threads wait for the rest of the block, which is how a missing barrier shows. kRoundRobin takes
/// one step of every thread in turn.
enum class Schedule { kForward, kReverse, kShuffled, kRoundRobin };

/// Where a barrier stands in the source.
struct Place {
  const char* file;
  int line;
};

class Block;

/// A CUDA thread.
struct Thread : Fiber {
  enum class State : uint8_t { kReady, kAtBarrier, kInWarp, kDone };

  Block* block = nullptr;
  Dim3 index;
  unsigned flat = 0;  // x fastest
  State state = State::kReady;
  const char* waits_in = "";
  AsyncCopies copies;

  unsigned lane() const { return flat % kWarpThreads; }
  unsigned warp() const { return flat / kWarpThreads; }
};

/// What the lanes of a warp handed in to one warp-wide operation. Valid until the lane's next one.
struct Deposits {
  static constexpr size_t kBytesMax = 64;

  unsigned lanes = 0;  // which handed in
  alignas(16) unsigned char bytes[kWarpThreads][kBytesMax];
};

/// One block at a time of a kernel: its threads, shared memory, barriers and warp-wide operations.
/// An error (threads at different barriers, a warp that diverges, a deadlock) ends the block and is
/// reported with its place. One OS thread uses it.
class Block {
 public:
  struct Launch {
    Dim3 grid, block;
    size_t dynamic_shared_bytes = 0;
    const std::function<void()>* kernel = nullptr;
    Schedule schedule = Schedule::kForward;
    uint64_t seed = 0;
    // For ThreadSanitizer: what threads acquire when they begin and release when they end or wait.
    // Two things, or whoever ends early would seem ordered before whoever begins late.
    void* begin_order = nullptr;
    void* end_order = nullptr;
  };

  explicit Block(const Launch& launch);
  /// Runs block `index` to its end. "" or the first error.
  std::string run(Dim3 index, StackPool& stacks);

  // For the block's threads.

  const Launch& launch() const { return launch_; }
  Dim3 index() const { return index_; }
  /// Waits for all threads of the block; the sum of their votes.
  int barrier(const char* operation, Place place, int vote);
  /// Hands `bytes` of `value` in and waits for the other lanes of `mask`. kOrdersMemory: what lanes
  /// did before is visible after.
  enum class Memory { kNotOrdered, kOrdersMemory };
  const Deposits& exchange(unsigned mask, const char* operation, const void* value, size_t bytes,
                           Memory memory);
  /// The block's shared object of this key, made of NaN bytes by the first thread that asks.
  void* shared(const void* key, size_t bytes);
  void* dynamic_shared() const { return dynamic_shared_; }
  /// Lanes of the current thread's warp that have not ended.
  unsigned alive_lanes() const;
  /// Ends the block with the error "`operation`: `what`". The caller's frame is never left: it must
  /// own nothing that wants to be freed.
  [[noreturn]] void fail(const char* operation, const char* what);

 private:
  /// One warp-wide operation under way; the lanes of `mask` meet in it again and again.
  struct Meeting {
    unsigned mask = 0, arrived = 0, generation = 0;
    const char* operation = nullptr;
    size_t bytes = 0;
    std::array<Deposits, 2> deposits;  // by generation: some lanes still read the last one's
  };
  struct Warp {
    unsigned alive = 0;
    std::vector<std::unique_ptr<Meeting>> meetings;
  };
  struct Shared {
    const void* key;
    std::unique_ptr<char, void (*)(void*)> memory;
  };

  /// What a thread does after it has arrived somewhere.
  enum class Next { kGoOn, kWait, kEnd };

  static void run_thread(void* thread);
  void reset(Dim3 index, StackPool& stacks);
  void order_threads();
  /// Runs the ready threads of order_[begin, end) once; whether there was one.
  bool run_ready(size_t begin, size_t end);
  void* add_shared(const void* key, size_t bytes);
  Next arrive_at_barrier(const char* operation, Place place, int vote);
  Next find_meeting(unsigned mask, const char* operation, size_t bytes, Meeting*& meeting);
  Next arrive_at(Meeting& meeting, const void* value, const Deposits*& deposits);
  /// Keeps the error, which ends the block.
  Next failed(const std::string& what);
  /// On a thread of the block: what `next` says.
  void leave(Next next);
  Meeting& meeting_of(Warp& warp, unsigned mask);
  void complete(unsigned warp, Meeting& meeting);
  void open_barrier();
  void end_thread(Thread& thread);
  std::string deadlock() const;

  Launch launch_;
  unsigned count_;
  Dim3 index_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned> order_;
  std::vector<Shared> shared_;
  void* dynamic_shared_ = nullptr;
  unsigned alive_ = 0, at_barrier_ = 0;
  int votes_ = 0, votes_result_ = 0;
  const char* barrier_operation_ = "";
  Place barrier_place_{"", 0};
  char barrier_order_ = 0;
  std::string error_;
};

/// The thread that runs on this OS thread; null outside a kernel.
extern constinit thread_local Thread* current_thread;
inline Thread& this_thread() { return *current_thread; }

}  // namespace percheron::emulator
