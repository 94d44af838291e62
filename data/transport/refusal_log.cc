#include "data/transport/refusal_log.h"

#include "base/log.h"

namespace percheron {

void RefusalLog::add(const std::string& peer, const Status& why) {
  constexpr int64_t kMinuteNs = 60'000'000'000;
  const std::lock_guard lock(mutex_);
  const int64_t now = clock_.monotonic_ns();
  if (lines_ == 0 || now - minute_began_ns_ >= kMinuteNs) {
    say_left_out();
    minute_began_ns_ = now;
    lines_ = 0;
  }
  if (lines_ >= kLinesPerMinute) {
    ++left_out_;
    return;
  }
  ++lines_;
  log_warning("refused a connection from {}: {}", peer, why.message());
}

int64_t RefusalLog::left_out() const {
  const std::lock_guard lock(mutex_);
  return left_out_before_ + left_out_;
}

void RefusalLog::say_left_out() {
  if (left_out_ == 0) return;
  log_warning("refused {} more connections", left_out_);
  left_out_before_ += left_out_;
  left_out_ = 0;
}

}  // namespace percheron
