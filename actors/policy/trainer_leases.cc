#include "actors/policy/trainer_leases.h"

#include <algorithm>

namespace percheron {

bool TrainerLeases::add(const TrainerLease& lease) {
  if (lease.membership < membership_) return false;
  regroup(lease.membership);
  missing_.erase(lease.id);
  auto place = held_.end();
  if (lease.in_order) {
    // One that could not be read is leased again behind later ones.
    place = std::ranges::find_if(held_, [&](const Held& h) { return lease.id < h.lease.id; });
  }
  held_.insert(place, {lease});
  return true;
}

void TrainerLeases::regroup(int64_t membership) {
  if (membership <= membership_) return;
  membership_ = membership;
  held_.clear();
  missing_.clear();
}

std::vector<TrainerLeases::Held>::iterator TrainerLeases::find(int64_t token) {
  return std::ranges::find_if(held_, [token](const Held& h) { return h.lease.token == token; });
}

bool TrainerLeases::fetched(int64_t token) {
  const auto held = find(token);
  if (held == held_.end()) return false;
  held->fetched = true;
  return true;
}

bool TrainerLeases::unreadable(int64_t token) {
  const auto held = find(token);
  if (held == held_.end()) return false;
  if (held->lease.in_order) missing_.insert(held->lease.id);
  held_.erase(held);
  return true;
}

std::optional<TrainerLease> TrainerLeases::after_current() const {
  if (held_.empty() || !held_.front().fetched) return std::nullopt;
  if (!missing_.empty() && *missing_.begin() < held_.front().lease.id) return std::nullopt;
  return held_.front().lease;
}

std::optional<TrainerLease> TrainerLeases::begin() {
  if (computing_) return std::nullopt;
  const std::optional<TrainerLease> next = after_current();
  if (!next) return std::nullopt;
  computing_ = true;
  held_.erase(held_.begin());
  return next;
}

}  // namespace percheron
