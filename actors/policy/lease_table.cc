#include "actors/policy/lease_table.h"

#include <set>

#include "base/check.h"

namespace percheron {

int64_t LeaseTable::grant(MicroBatchId id, int owner, int64_t now_ns) {
  const bool fresh = leases_.emplace(id, Lease{owner, next_token_, now_ns + ttl_ns_}).second;
  PERCHERON_CHECK(fresh, "a micro-batch is leased to one owner at a time");
  ++held_[owner];
  return next_token_++;
}

bool LeaseTable::holds(MicroBatchId id, int owner, int64_t token) const {
  const auto lease = leases_.find(id);
  return lease != leases_.end() && lease->second.owner == owner && lease->second.token == token;
}

bool LeaseTable::settle(MicroBatchId id, int owner, int64_t token) {
  if (!holds(id, owner, token)) return false;
  leases_.erase(id);
  ended(owner);
  return true;
}

bool LeaseTable::renew(MicroBatchId id, int owner, int64_t token, int64_t now_ns) {
  if (!holds(id, owner, token)) return false;
  leases_.at(id).deadline_ns = now_ns + ttl_ns_;
  return true;
}

std::vector<MicroBatchId> LeaseTable::drop_owner(int owner) {
  std::vector<MicroBatchId> dropped;
  if (held_.erase(owner) == 0) return dropped;
  for (auto lease = leases_.begin(); lease != leases_.end();) {
    if (lease->second.owner == owner) {
      dropped.push_back(lease->first);
      lease = leases_.erase(lease);
    } else {
      ++lease;
    }
  }
  return dropped;
}

std::vector<MicroBatchId> LeaseTable::expire(int64_t now_ns) {
  std::vector<MicroBatchId> expired;
  for (auto lease = leases_.begin(); lease != leases_.end();) {
    if (is_over(lease->second, now_ns)) {
      expired.push_back(lease->first);
      ended(lease->second.owner);
      lease = leases_.erase(lease);
    } else {
      ++lease;
    }
  }
  return expired;
}

std::optional<int> LeaseTable::owner_of(MicroBatchId id) const {
  const auto lease = leases_.find(id);
  if (lease == leases_.end()) return std::nullopt;
  return lease->second.owner;
}

std::optional<MicroBatchId> LeaseTable::oldest() const {
  if (leases_.empty()) return std::nullopt;
  return leases_.begin()->first;
}

std::vector<int> LeaseTable::overdue_owners(int64_t now_ns) const {
  std::set<int> owners;
  for (const auto& [id, lease] : leases_) {
    if (is_over(lease, now_ns)) owners.insert(lease.owner);
  }
  return {owners.begin(), owners.end()};
}

}  // namespace percheron
