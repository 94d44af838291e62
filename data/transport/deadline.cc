#include "data/transport/deadline.h"

#include <algorithm>
#include <limits>

namespace percheron {

int Deadline::poll_ms() const {
  if (at_ == Clock::time_point::max()) return -1;
  const Clock::time_point now = Clock::now();
  if (at_ <= now) return 0;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - now).count();
  return static_cast<int>(std::min<int64_t>(left, std::numeric_limits<int>::max()));
}

}  // namespace percheron
