#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace percheron {

/// A clock that stands until a test turns it. Thread-safe.
class FakeClock final : public Clock {
 public:
  static constexpr double kToday = 1'700'000'000;

  explicit FakeClock(double unix_seconds = kToday) : began_(unix_seconds) {}

  int64_t monotonic_ns() const override { return now_.load(); }
  double unix_seconds() const override {
    return began_ + jumped_.load() + static_cast<double>(now_.load() - kBegin) * 1e-9;
  }

  /// Time passes.
  void advance(double seconds) { now_ += static_cast<int64_t>(seconds * 1e9); }
  /// The time of day is corrected, forwards or back.
  void jump(double seconds) { jumped_ = jumped_.load() + seconds; }

 private:
  static constexpr int64_t kBegin = 1;  // 0 may mean "never" to who looks

  const double began_;
  std::atomic<double> jumped_{0};
  std::atomic<int64_t> now_{kBegin};
};

}  // namespace percheron
