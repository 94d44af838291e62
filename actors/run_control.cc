#include "actors/run_control.h"

#include <utility>

#include "base/check.h"

namespace percheron {

void RunControl::tell(const Message& message) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  if (run_) return run_(message);
  PERCHERON_CHECK(waiting_.size() < kWaitingMax, "nobody steers a run that often before it starts");
  waiting_.push_back(message);
}

void RunControl::attach(std::function<void(const Message&)> run) {
  const std::lock_guard lock(mutex_);
  run_ = std::move(run);
  for (const Message& message : std::exchange(waiting_, {})) run_(message);
}

void RunControl::detach() {
  const std::lock_guard lock(mutex_);
  over_ = true;
  run_ = nullptr;
}

}  // namespace percheron
