#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace percheron {

/// Logs why peers were refused, so that nobody can fill the log by knocking: at most
/// kLinesPerMinute, and how many were left out. Thread-safe.
class RefusalLog {
 public:
  static constexpr int kLinesPerMinute = 10;

  /// `clock` is borrowed.
  explicit RefusalLog(const Clock& clock) : clock_(clock) {}
  ~RefusalLog() { say_left_out(); }

  void add(const std::string& peer, const Status& why);
  /// Lines not logged so far.
  int64_t left_out() const;

 private:
  void say_left_out();

  const Clock& clock_;
  mutable std::mutex mutex_;
  int64_t minute_began_ns_ = 0;
  int lines_ = 0;
  int64_t left_out_ = 0;  // in this minute
  int64_t left_out_before_ = 0;
};

}  // namespace percheron
