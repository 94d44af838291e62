#pragma once

#include <cstdint>
#include <mutex>

namespace percheron {

/// What the thread that reads a link is at, so that another may judge whether it is stuck.
/// Thread-safe.
class ReaderTurn {
 public:
  /// The reader waits for a frame, for a moment, and says so again.
  void waits() { begin(State::kWaits); }
  /// The reader deals with a frame, which takes a moment only.
  void deals() { begin(State::kDeals); }
  /// What the reader does now may take long, or it reads no more.
  void rests() { begin(State::kRests); }

  /// False when the reader is at the same as at the last call, and does not rest.
  bool moves() {
    const std::lock_guard lock(mutex_);
    const bool moves = state_ == State::kRests || turns_ != seen_;
    seen_ = turns_;
    return moves;
  }
  bool deals_now() const {
    const std::lock_guard lock(mutex_);
    return state_ == State::kDeals;
  }

 private:
  enum class State { kRests, kWaits, kDeals };
  void begin(State state) {
    const std::lock_guard lock(mutex_);
    state_ = state;
    ++turns_;
  }

  mutable std::mutex mutex_;
  State state_ = State::kRests;
  int64_t turns_ = 0, seen_ = 0;
};

}  // namespace percheron
