#include "actors/policy/restart_history.h"

#include <algorithm>

namespace percheron {

void RestartHistory::working(double now, int64_t progress) {
  if (working_since_) return;
  working_since_ = now;
  progress_ = progress;
}

// A process that dies soon after each start wastes more of the others' time the longer its waits
// have grown: it has to work for as long as it was waited for.
bool RestartHistory::is_proven(double now, int64_t progress) const {
  return working_since_ && progress > progress_ &&
         now - *working_since_ >= std::max(limits_.proven_seconds, wait_);
}

std::optional<double> RestartHistory::ended(double now, int64_t progress) {
  if (is_proven(now, progress)) deaths_.clear();
  working_since_.reset();
  std::erase_if(deaths_, [&](double time) { return time < now - limits_.window_seconds; });
  deaths_.push_back(now);
  if (count() > limits_.restarts_max) return std::nullopt;
  wait_ = std::min(limits_.wait_max_seconds,
                   limits_.wait_min_seconds * static_cast<double>(int64_t{1} << (count() - 1)));
  return wait_;
}

}  // namespace percheron
