#include "kernels/cuda/emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#if !defined(__x86_64__)
#error "the emulator switches stacks on x86-64 only"
#endif

// ThreadSanitizer keeps a shadow of the call stack, which a switch in the middle would upset.
#if defined(__SANITIZE_THREAD__)
#define PERCHERON_NO_TSAN __attribute__((no_sanitize("thread"), noinline))
#else
#define PERCHERON_NO_TSAN __attribute__((noinline))
#endif

// Stores the stack pointer in *save and goes on at `load`. Only registers that a call preserves
// need saving.
extern "C" void percheron_switch_stack(void** save, void* load);
asm(R"(
.text
.globl percheron_switch_stack
.hidden percheron_switch_stack
.type percheron_switch_stack,@function
percheron_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size percheron_switch_stack,.-percheron_switch_stack
)");

namespace percheron::emulator {
namespace {

constexpr int kSavedRegisters = 6;

// The fiber whose entry is about to be called.
constinit thread_local Fiber* starting = nullptr;

}  // namespace

StackPool::~StackPool() {
  if (memory_ != nullptr) munmap(memory_, count_ * kStackBytes);
}

bool StackPool::prepare(size_t count) {
  if (count > count_ || kThreadSanitizer) {
    // ThreadSanitizer remembers a stack's accesses: new pages have none.
    if (memory_ != nullptr) munmap(memory_, count_ * kStackBytes);
    void* memory = mmap(nullptr, count * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      memory_ = nullptr;
      count_ = 0;
      return false;
    }
    memory_ = static_cast<char*>(memory);
    count_ = count;
    // A thousand protected pages per block would take ThreadSanitizer's whole time.
    const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    for (size_t i = 0; i < count && !kThreadSanitizer; ++i) {
      if (mprotect(stack(i), page_bytes, PROT_NONE) != 0) return false;
    }
  }
  return true;
}

void StackPool::clear_frames() {
#if defined(__SANITIZE_ADDRESS__)
  for (size_t i = 0; i < count_; ++i) __asan_unpoison_memory_region(stack(i), kStackBytes);
#endif
}

void Fiber::start(char* stack, void (*entry)(void*), void* argument) {
  forget();
  stack_ = stack;
  entry_ = entry;
  argument_ = argument;
#if defined(__SANITIZE_ADDRESS__)
  // The frames in which the stack's last fiber finished were never left.
  constexpr size_t kOuterFramesBytes = 4096;
  __asan_unpoison_memory_region(stack + StackPool::kStackBytes - kOuterFramesBytes,
                                kOuterFramesBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
  // As percheron_switch_stack() leaves a stack: saved registers, then where to go on. The extra
  // word is the return address of a function that never returns, and aligns its frame.
  auto** top = reinterpret_cast<void**>(stack + StackPool::kStackBytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Fiber::run_first);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  top_ = top;
}

PERCHERON_NO_TSAN void Fiber::resume() {
  starting = this;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&resumer_fake_stack_, stack_, StackPool::kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  tsan_resumer_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
  percheron_switch_stack(&resumer_top_, top_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(resumer_fake_stack_, nullptr, nullptr);
#endif
}

PERCHERON_NO_TSAN void Fiber::leave([[maybe_unused]] void** fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake_stack, resumer_stack_, resumer_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(tsan_resumer_, __tsan_switch_to_fiber_no_sync);
#endif
  percheron_switch_stack(&top_, resumer_top_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &resumer_stack_, &resumer_stack_bytes_);
#endif
}

void Fiber::finish() {
  leave(nullptr);
  std::abort();  // Nobody resumes a finished fiber.
}

void Fiber::forget() {
#if defined(__SANITIZE_THREAD__)
  if (tsan_fiber_ != nullptr) __tsan_destroy_fiber(tsan_fiber_);
#endif
  tsan_fiber_ = nullptr;
}

void Fiber::run_first() {
  Fiber* fiber = starting;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &fiber->resumer_stack_, &fiber->resumer_stack_bytes_);
#endif
  fiber->entry_(fiber->argument_);
  fiber->finish();
}

}  // namespace percheron::emulator
