#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "base/status.h"
#include "data/transport/deadline.h"

namespace percheron {

/// A limit on bytes that are pulled or were pulled and not yet used: how far a node reads ahead.
/// Thread-safe; must outlive its holds. Who waits longest is served first, so that a large pull is
/// not starved by small ones.
class ByteCredits {
 public:
  /// Gives its bytes back at the end. Movable.
  class Hold {
   public:
    Hold() = default;
    ~Hold() { release(); }
    Hold(Hold&& other) noexcept
        : credits_(std::exchange(other.credits_, nullptr)), bytes_(other.bytes_) {}
    Hold& operator=(Hold&& other) noexcept;
    void release();
    uint64_t bytes() const { return credits_ == nullptr ? 0 : bytes_; }

   private:
    friend class ByteCredits;
    Hold(ByteCredits* credits, uint64_t bytes) : credits_(credits), bytes_(bytes) {}

    ByteCredits* credits_ = nullptr;
    uint64_t bytes_ = 0;
  };

  explicit ByteCredits(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  ByteCredits(const ByteCredits&) = delete;
  ByteCredits& operator=(const ByteCredits&) = delete;

  /// Waits for `bytes`. kInvalidArgument when that is above the limit, kUnavailable when the
  /// deadline passes, kCancelled once `cancelled` is true (see wake()).
  Result<Hold> take(uint64_t bytes, Deadline deadline,
                    const std::function<bool()>& cancelled = nullptr);
  /// Lets waiters ask `cancelled` again.
  void wake();

  uint64_t bytes_max() const { return bytes_max_; }
  uint64_t bytes_held() const;

 private:
  void give_back(uint64_t bytes);

  const uint64_t bytes_max_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t held_ = 0;
  uint64_t next_waiter_ = 0;
  std::deque<uint64_t> waiting_;  // in the order in which they are served
};

}  // namespace percheron
