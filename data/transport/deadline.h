#pragma once

#include <chrono>
#include <string>

namespace percheron {

/// Until when to wait for the network. Real time: the kernel waits, so no clock can be put in its
/// place.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(std::chrono::milliseconds time) { return Deadline(Clock::now() + time); }
  /// For waits that close() of what is waited for ends.
  static Deadline never() { return Deadline(Clock::time_point::max()); }
  /// Takes what is there without waiting.
  static Deadline now() { return Deadline(Clock::time_point()); }

  bool passed() const { return at_ <= Clock::now(); }
  Clock::time_point time() const { return at_; }
  Deadline earlier(Deadline other) const { return at_ < other.at_ ? *this : other; }
  /// For poll(): milliseconds left, rounded up, 0 when it has passed, -1 for never.
  int poll_ms() const;

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}

  Clock::time_point at_;
};

}  // namespace percheron
