#include "actors/rank_pass.h"

#include <string>
#include <utility>

namespace percheron {

void RankPass::run(int rank, const std::function<Status()>& work) {
  bool together = false;
  {
    std::unique_lock lock(mutex_);
    ++begun_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return begun_ == size_ || failure_; });
    together = begun_ == size_ && !failure_;
  }
  finish(rank, together ? work() : cancelled("another rank did not begin"));
}

void RankPass::drop(int rank) {
  finish(rank, cancelled("rank " + std::to_string(rank) + "'s device was stopped"));
}

void RankPass::finish(int rank, Status status) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    if (!status.ok() && !failure_) {
      failure_ = Failure{rank, std::move(status)};
      first = true;
    }
    changed_.notify_all();
  }
  // Before this rank counts as finished: `failed` may use what the one who waits then frees.
  if (first) failed_(*failure_);
  const std::lock_guard lock(mutex_);
  ++finished_;
  changed_.notify_all();
}

std::optional<RankPass::Failure> RankPass::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_ == size_; });
  return failure_;
}

}  // namespace percheron
