#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "actors/policy/number_map.h"
#include "actors/policy/number_set.h"
#include "actors/policy/sampler_policy.h"

namespace percheron {

/// Targets that wait for a micro-batch. A node that had no room is asked again when one of its own
/// targets comes, when the next micro-batch is smaller than the one that it had no room for, and
/// when room may have grown: so that what one target does costs no look at all others.
class IdleTargets {
 public:
  /// The node of each target.
  explicit IdleTargets(std::vector<int> nodes);

  /// One more target, with the next number.
  void add_target(int node) { nodes_.push_back(node); }
  /// The target waits from now on; no effect if it does already.
  void add(int target);
  void remove(int target);
  bool contains(int target) const;
  /// Every target that waits.
  std::set<int> all() const;
  /// Features were freed, or the sampler has older work again.
  void room_changed();

  /// The next micro-batch for one of them, which waits no more; none when there is none, or no room
  /// for it where they are.
  std::optional<std::pair<int, Production>> next(SamplerPolicy& sampler, int64_t now_ns);
  /// Nodes that were asked for room, for tests of what a micro-batch costs.
  int64_t asked() const { return asked_; }

 private:
  void unblock(int node);

  std::vector<int> nodes_;
  NumberMap<std::vector<int>> waiting_;          // targets by node, ascending
  NumberSet ready_;                              // nodes with waiting targets, to be asked
  NumberMap<uint64_t> blocked_;                  // and those without room for so many bytes
  std::set<std::pair<uint64_t, int>> by_bytes_;  // the same
  int64_t asked_ = 0;
};

}  // namespace percheron
