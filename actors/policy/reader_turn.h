#pragma once

#include <cstdint>
#include <mutex>

namespace percheron {

/// What the thread that reads a link is at, so that another may judge whether it is stuck.
/// Thread-safe.
class ReaderTurn {
 public:
  /// The reader deals with a frame, which takes a moment only.
  void takes() {
    const std::lock_guard lock(mutex_);
    busy_ = true;
    ++turns_;
  }
  /// The reader waits for the next frame, or does what may take long, or reads no more.
  void rests() {
    const std::lock_guard lock(mutex_);
    busy_ = false;
  }

  /// False when it is at the same frame as at the last call.
  bool moves() {
    const std::lock_guard lock(mutex_);
    const bool moves = !busy_ || turns_ != seen_;
    seen_ = turns_;
    return moves;
  }
  bool busy() const {
    const std::lock_guard lock(mutex_);
    return busy_;
  }

 private:
  mutable std::mutex mutex_;
  bool busy_ = false;
  int64_t turns_ = 0, seen_ = 0;
};

}  // namespace percheron
