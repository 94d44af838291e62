#include "actors/policy/held_leases.h"

#include <algorithm>

#include "base/check.h"

namespace percheron {

void HeldLeases::add(int trainer, MicroBatchId id, uint64_t bytes, bool in_order) {
  std::vector<Held>& leases = held_[trainer];
  const auto behind = [id](const Held& lease) { return id < lease.id; };
  leases.insert(in_order ? std::ranges::find_if(leases, behind) : leases.end(), {id, bytes});
}

bool HeldLeases::remove(int trainer, MicroBatchId id) {
  std::vector<Held>& leases = held_.at(trainer);
  const auto lease = std::ranges::find(leases, id, &Held::id);
  PERCHERON_CHECK(lease != leases.end(), "a lease that is over was held");
  const bool first = lease == leases.begin();
  leases.erase(lease);
  return first;
}

size_t HeldLeases::count(int trainer) const {
  const auto held = held_.find(trainer);
  return held == held_.end() ? 0 : held->second.size();
}

bool HeldLeases::has_room(int trainer, uint64_t bytes) const {
  const auto held = held_.find(trainer);
  if (!looks_ahead() || held == held_.end() || held->second.empty()) return false;
  const std::vector<Held>& leases = held->second;
  if (leases.size() == 1) return true;
  if (leases.size() > kAheadMax) return false;
  uint64_t ahead = bytes;
  for (size_t i = 1; i < leases.size(); ++i) ahead += leases[i].bytes;
  return ahead <= ahead_bytes_max_;
}

bool HeldLeases::is_before_all(int trainer, MicroBatchId id) const {
  const auto held = held_.find(trainer);
  return held != held_.end() && !held->second.empty() &&
         std::ranges::all_of(held->second, [id](const Held& lease) { return id < lease.id; });
}

}  // namespace percheron
