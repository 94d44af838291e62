#pragma once

// What AddressSanitizer and ThreadSanitizer must be told about hand-switched stacks, about memory
// that a barrier orders, and about the emulator's own state. Nothing in other builds.

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" {
void __tsan_ignore_thread_begin();  // NOLINT: the sanitizer's names
void __tsan_ignore_thread_end();    // NOLINT
}
#endif

namespace percheron::emulator {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

/// What this thread did before is visible to whoever acquires `order` afterwards.
inline void release(void* order) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(order);
#else
  (void)order;
#endif
}
inline void acquire(void* order) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(order);
#else
  (void)order;
#endif
}

/// While it lives, ThreadSanitizer ignores what this thread reads and writes: the emulator's own
/// state is no part of the kernel under test.
class IgnoreAccesses {
 public:
#if defined(__SANITIZE_THREAD__)
  IgnoreAccesses() { __tsan_ignore_thread_begin(); }
  ~IgnoreAccesses() { __tsan_ignore_thread_end(); }
#else
  IgnoreAccesses() {}   // NOLINT: not trivial, so that an unused one is no warning
  ~IgnoreAccesses() {}  // NOLINT
#endif
  IgnoreAccesses(const IgnoreAccesses&) = delete;
  IgnoreAccesses& operator=(const IgnoreAccesses&) = delete;
};

}  // namespace percheron::emulator
