#include "actors/trainer_feed.h"

#include <optional>
#include <utility>

#include "actors/device_sums.h"

namespace percheron {

void TrainerFeed::take(const TakeTicket& message) {
  const TrainerLease lease{message.ticket.id, message.lease, message.membership, message.in_order};
  // Without the lock: it may end what others have begun to sum. Undone if it is not to be.
  std::shared_ptr<void> announced = sums_ ? sums_->announce(message.ticket.step) : nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (leases_.idle()) free_since_ = now();
    if (!leases_.add(lease)) return;
    held_[lease.token].announced = std::move(announced);
  }
  exchange_.fetch(message.ticket, [this, lease](Result<FeaturesPtr> found) {
    found.ok() ? fetched(lease, *std::move(found)) : unreadable(lease, found.status());
  });
}

void TrainerFeed::regroup(int64_t membership) {
  std::map<int64_t, Held> dropped;  // goes without the lock: memory is given back
  const std::lock_guard lock(mutex_);
  leases_.regroup(membership);
  dropped.swap(held_);
}

void TrainerFeed::fetched(const TrainerLease& lease, FeaturesPtr features) {
  {
    const std::lock_guard lock(mutex_);
    if (!leases_.fetched(lease.token)) return;
    held_.at(lease.token).features = std::move(features);
  }
  go_on();
}

void TrainerFeed::unreadable(const TrainerLease& lease, const Status& why) {
  Held dropped;
  {
    const std::lock_guard lock(mutex_);
    if (!leases_.unreadable(lease.token)) return;
    dropped = std::move(held_.extract(lease.token).mapped());
  }
  hooks_.unreadable(lease, why);
  go_on();
}

void TrainerFeed::done() {
  {
    const std::lock_guard lock(mutex_);
    leases_.done();
    free_since_ = now();
  }
  go_on();
}

void TrainerFeed::go_on() {
  std::optional<MicroBatch> begun;
  FeaturesPtr next;
  {
    const std::lock_guard lock(mutex_);
    if (const std::optional<TrainerLease> lease = leases_.begin()) {
      Held held = std::move(held_.extract(lease->token).mapped());
      begun = MicroBatch{*lease, std::move(held.features), std::move(held.announced),
                         now() - free_since_};
    }
    const std::optional<TrainerLease> after = leases_.after_current();
    if (hooks_.prepare && after && leases_.computing() && after->token != prepared_) {
      prepared_ = after->token;
      next = held_.at(after->token).features;
    }
  }
  if (begun) hooks_.compute(*std::move(begun));
  if (next) hooks_.prepare(next);
}

}  // namespace percheron
