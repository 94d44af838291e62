#include "actors/policy/silence_watch.h"

#include <algorithm>

namespace percheron {

void SilenceWatch::heard(int64_t who, double now) {
  const auto known = due_.find(who);
  if (known != due_.end()) known->second = now + limits_.silence_seconds;
}

void SilenceWatch::excuse(double now) {
  // Never less than is left: the time until a first sign may be longer.
  for (auto& [who, due] : due_) due = std::max(due, now + limits_.silence_seconds);
}

std::vector<int64_t> SilenceWatch::take_silent(double now) {
  if (asked_before_ && now - asked_ >= limits_.gap_seconds) excuse(now);
  asked_before_ = true;
  asked_ = now;
  std::vector<int64_t> silent;
  for (const auto& [who, due] : due_) {
    if (now >= due) silent.push_back(who);
  }
  for (int64_t who : silent) due_.erase(who);
  return silent;
}

}  // namespace percheron
