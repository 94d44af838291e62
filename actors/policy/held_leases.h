#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/policy/number_map.h"
#include "data/micro_batch.h"

namespace percheron {

/// What each trainer holds, as the mailbox gave it: the first is what it computes or is about to,
/// the others are ahead of that.
class HeldLeases {
 public:
  /// Ahead of what a trainer computes, however small they are: enough to cover what a link takes
  /// for one, and no more than other trainers can do without.
  static constexpr size_t kAheadMax = 8;

  /// `ahead_bytes_max`: of the features that a trainer holds ahead; the first one ahead may be
  /// larger. 0 = nothing is held ahead.
  explicit HeldLeases(uint64_t ahead_bytes_max) : ahead_bytes_max_(ahead_bytes_max) {}

  /// `in_order`: it computes by index, not as it was given.
  void add(int trainer, MicroBatchId id, uint64_t bytes, bool in_order);
  /// The lease is over. Whether it was the first.
  bool remove(int trainer, MicroBatchId id);
  void clear() { held_.clear(); }

  bool holds_any(int trainer) const { return count(trainer) > 0; }
  size_t count(int trainer) const;
  /// May hold one more, of so many bytes, ahead of what it computes.
  bool has_room(int trainer, uint64_t bytes) const;
  /// It waits for this one: it computes in the order of index, and holds later ones only.
  bool is_before_all(int trainer, MicroBatchId id) const;
  bool looks_ahead() const { return ahead_bytes_max_ > 0; }

 private:
  struct Held {
    MicroBatchId id;
    uint64_t bytes = 0;
  };

  const uint64_t ahead_bytes_max_;
  NumberMap<std::vector<Held>> held_;  // an empty one keeps its memory
};

}  // namespace percheron
