#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "actors/policy/micro_batch_map.h"
#include "actors/policy/number_map.h"
#include "data/micro_batch.h"

namespace percheron {

/// Who works on what, and until when. A lease's token is its fence: the word of an owner whose
/// lease was taken away no longer counts. Micro-batches come back in order.
class LeaseTable {
 public:
  /// `ttl_ns` is how long an owner may stay silent; 0 = for ever.
  explicit LeaseTable(int64_t ttl_ns) : ttl_ns_(ttl_ns) {}

  /// Leases `id`, which nobody holds, to `owner`; returns the token.
  int64_t grant(MicroBatchId id, int owner, int64_t now_ns);
  /// Ends a lease; false if `owner` does not hold it with this token (any more).
  bool settle(MicroBatchId id, int owner, int64_t token);
  /// Prolongs a lease; false as settle().
  bool renew(MicroBatchId id, int owner, int64_t token, int64_t now_ns);
  /// Ends all leases of an owner and returns what they were for.
  std::vector<MicroBatchId> drop_owner(int owner);
  /// Ends the leases whose time is over and returns what they were for.
  std::vector<MicroBatchId> expire(int64_t now_ns);
  /// Ends every lease.
  void clear() {
    leases_.clear();
    held_.clear();
  }

  std::optional<int> owner_of(MicroBatchId id) const;
  /// The first micro-batch that anyone holds; none if nobody does.
  std::optional<MicroBatchId> oldest() const;
  /// Owners of leases whose time is over, each once; the leases stay.
  std::vector<int> overdue_owners(int64_t now_ns) const;
  size_t outstanding() const { return leases_.size(); }
  size_t held_by(int owner) const {
    const auto held = held_.find(owner);
    return held == held_.end() ? 0 : held->second;
  }

 private:
  struct Lease {
    int owner = 0;
    int64_t token = 0;
    int64_t deadline_ns = 0;
  };
  bool holds(MicroBatchId id, int owner, int64_t token) const;
  /// One lease of an owner is over.
  void ended(int owner) {
    const auto held = held_.find(owner);
    if (--held->second == 0) held_.erase(owner);
  }
  bool is_over(const Lease& lease, int64_t now_ns) const {
    return ttl_ns_ > 0 && lease.deadline_ns <= now_ns;
  }

  int64_t ttl_ns_;
  int64_t next_token_ = 1;
  MicroBatchMap<Lease> leases_;
  NumberMap<size_t> held_;  // leases by owner; none 0
};

}  // namespace percheron
