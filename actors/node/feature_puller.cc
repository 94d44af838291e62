#include "actors/node/feature_puller.h"

#include <utility>

namespace percheron {

void FeaturePuller::post(Job job) {
  if (thread_.waiting() >= kWaitingMax) return run(job);
  thread_.post([this, job = std::move(job)] { run(job); });
}

void FeaturePuller::run(const Job& job) {
  PullCancellation cancellation;
  {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    running_.insert(&cancellation);
  }
  job(cancellation);
  const std::lock_guard lock(mutex_);
  running_.erase(&cancellation);
}

void FeaturePuller::cancel() {
  thread_.close();
  const std::lock_guard lock(mutex_);
  over_ = true;
  for (PullCancellation* pull : running_) pull->cancel();
}

void FeaturePuller::stop() {
  cancel();
  thread_.stop();
}

}  // namespace percheron
