#include "actors/device_sums.h"

#include <fmt/format.h>

#include <utility>

#include "actors/step_trainer.h"

namespace percheron {

// What is left in the stream may use memory of the group's.
DeviceSums::~DeviceSums() {
  if (!collective_) return;
  collective_->abort("its trainer is gone");
  (void)collective_->wait_idle(*stream_);
}

std::shared_ptr<void> DeviceSums::announce(int64_t step) {
  {
    const std::lock_guard lock(mutex_);
    if (active_ && step == step_) {
      give_up_locked(fmt::format("a micro-batch of step {} was queued again", step));
    }
  }
  return buckets_.announce();
}

std::optional<int64_t> DeviceSums::begin(int64_t step, int64_t group) {
  const std::lock_guard lock(mutex_);
  if (active_ && step == step_ && group == group_) return std::nullopt;
  if (group != group_) give_up_locked("the group that sums has changed");
  active_ = true;
  step_ = step;
  group_ = group;
  outcome_ = ok_status();
  buckets_.give_up_before(++attempt_);
  return attempt_;
}

void DeviceSums::give_up(const std::string& why) {
  const std::lock_guard lock(mutex_);
  give_up_locked(why);
}

void DeviceSums::give_up_locked(const std::string& why) {
  active_ = false;
  buckets_.give_up_before(++attempt_);
  if (collective_) collective_->abort(why);
  groups_.give_up(group_);
}

Result<std::shared_ptr<DeviceCollective>> DeviceSums::join(int64_t attempt,
                                                           std::span<const int> members) {
  std::shared_ptr<DeviceCollective> left;
  int64_t group = 0;
  {
    const std::lock_guard lock(mutex_);
    if (attempt != attempt_) return std::shared_ptr<DeviceCollective>();
    if (joined_ == group_) return collective_;
    group = group_;
    left = std::move(collective_);
  }
  // What was put in for an attempt that was given up may still use the sums' memory.
  if (left) (void)left->wait_idle(*stream_);
  left.reset();
  Result<std::unique_ptr<DeviceCollective>> joined = groups_.join(group, members, self_);
  const std::lock_guard lock(mutex_);
  if (attempt != attempt_) return std::shared_ptr<DeviceCollective>();
  if (!joined.ok()) return joined.status();
  collective_ = std::move(*joined);
  joined_ = group;
  return collective_;
}

void DeviceSums::put_in(StepTrainer& trainer, int64_t attempt, std::span<const int> members) {
  const Result<std::shared_ptr<DeviceCollective>> joined = join(attempt, members);
  if (!joined.ok()) return end(attempt, joined.status());
  const std::shared_ptr<DeviceCollective>& collective = *joined;
  if (!collective) return;
  const Status status = trainer.reduce(*stream_, *collective, attempt);
  if (!status.ok()) {
    collective->abort(status.message());
    (void)collective->wait_idle(*stream_);  // Says the same.
  }
  end(attempt, status);
}

void DeviceSums::end(int64_t attempt, const Status& outcome) {
  const std::lock_guard lock(mutex_);
  if (attempt == attempt_) outcome_ = outcome;
}

Status DeviceSums::wait(int64_t step) {
  std::shared_ptr<DeviceCollective> collective;
  int64_t attempt = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!active_ || step != step_) {
      return unavailable(fmt::format("the sums of step {} were given up", step));
    }
    PERCHERON_RETURN_IF_ERROR(outcome_);
    collective = collective_;
    attempt = attempt_;
  }
  if (!buckets_.wait_all(attempt)) {
    return unavailable(fmt::format("the sums of step {} were given up", step));
  }
  return collective->wait_idle(*stream_);
}

}  // namespace percheron
