#include "data/transport/byte_credits.h"

#include <algorithm>
#include <string>

namespace percheron {

ByteCredits::Hold& ByteCredits::Hold::operator=(Hold&& other) noexcept {
  if (this == &other) return *this;
  release();
  credits_ = std::exchange(other.credits_, nullptr);
  bytes_ = other.bytes_;
  return *this;
}

void ByteCredits::Hold::release() {
  if (credits_ != nullptr) std::exchange(credits_, nullptr)->give_back(bytes_);
}

Result<ByteCredits::Hold> ByteCredits::take(uint64_t bytes, Deadline deadline,
                                            const std::function<bool()>& cancelled) {
  if (bytes > bytes_max_) {
    return invalid_argument(std::to_string(bytes) + " bytes are more than the limit of " +
                            std::to_string(bytes_max_) + " bytes for all pulls together");
  }
  std::unique_lock lock(mutex_);
  const uint64_t self = next_waiter_++;
  waiting_.push_back(self);
  const auto is_cancelled = [&] { return cancelled != nullptr && cancelled(); };
  const auto has_turn = [&] { return waiting_.front() == self && held_ + bytes <= bytes_max_; };
  const auto done = [&] { return is_cancelled() || has_turn(); };
  if (deadline.poll_ms() < 0) {
    changed_.wait(lock, done);  // libstdc++ overflows on time_point::max()
  } else {
    changed_.wait_until(lock, deadline.time(), done);
  }
  const bool granted = !is_cancelled() && has_turn();
  std::erase(waiting_, self);
  if (granted) held_ += bytes;
  // The next in line may fit too.
  changed_.notify_all();
  if (granted) return Hold(this, bytes);
  if (is_cancelled()) return percheron::cancelled("the pull was cancelled");
  return unavailable("no room for " + std::to_string(bytes) + " bytes in time: pulls hold " +
                     std::to_string(held_) + " of " + std::to_string(bytes_max_) + " bytes");
}

void ByteCredits::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

uint64_t ByteCredits::bytes_held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

void ByteCredits::give_back(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  held_ -= bytes;
  changed_.notify_all();
}

}  // namespace percheron
