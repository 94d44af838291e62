#pragma once

#include <chrono>
#include <cstdint>

namespace percheron {

/// Where time comes from, so that a simulation can replace it. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Nanoseconds since an arbitrary start; never goes back.
  virtual int64_t monotonic_ns() const = 0;
  /// Seconds since 1970-01-01 UTC.
  virtual double unix_seconds() const = 0;
};

/// The operating system's clock.
const Clock& system_clock();

}  // namespace percheron
