#pragma once

#include <cstddef>

#include "kernels/cuda/emulator/sanitizers.h"

/// Flows of control that one OS thread switches by hand: the threads of an emulated block. x86-64.
namespace percheron::emulator {

/// Stacks for a block's threads, reused block after block, each with a guard page at its end.
class StackPool {
 public:
  /// Frames are larger under AddressSanitizer.
  static constexpr size_t kStackBytes = (kAddressSanitizer ? size_t{256} : size_t{64}) << 10;

  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  /// Makes `count` stacks ready that nobody uses. False if the host has no memory for them.
  [[nodiscard]] bool prepare(size_t count);
  /// To be called when fibers were abandoned in the middle: nothing left on the stacks counts.
  void clear_frames();
  /// The lowest address of stack `i` < count.
  char* stack(size_t i) const { return memory_ + i * kStackBytes; }

 private:
  char* memory_ = nullptr;
  size_t count_ = 0;
};

/// One flow of control. It is resumed by its OS thread and runs until it suspends; it stays with
/// that OS thread. A fiber may be started again at any time: what is left on its stack is forgotten
/// without being unwound.
class Fiber {
 public:
  Fiber() = default;
  ~Fiber() { forget(); }
  Fiber(Fiber&& other) = delete;
  Fiber& operator=(Fiber&& other) = delete;

  /// The next resume() calls entry(argument) on `stack`, of StackPool::kStackBytes.
  void start(char* stack, void (*entry)(void*), void* argument);
  /// Runs the fiber until it suspends or finishes.
  void resume();
  /// On the fiber: returns to whoever resumed it.
  void suspend() { leave(&fake_stack_); }
  /// On the fiber: as suspend(), for the last time. `entry` ends by it.
  [[noreturn]] void finish();
  /// Gives up what the sanitizers hold of a fiber that will not be resumed.
  void forget();

 private:
  static void run_first();
  void leave(void** fake_stack);

  char* stack_ = nullptr;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  void* top_ = nullptr;          // the stack pointer while the fiber is suspended
  void* resumer_top_ = nullptr;  // and its resumer's while it runs
  // What the sanitizers want back at the next switch.
  void* fake_stack_ = nullptr;
  void* resumer_fake_stack_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_bytes_ = 0;
  void* tsan_fiber_ = nullptr;
  void* tsan_resumer_ = nullptr;
};

}  // namespace percheron::emulator
