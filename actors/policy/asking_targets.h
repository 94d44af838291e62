#pragma once

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "actors/policy/idle_targets.h"

namespace percheron {

/// Targets that would take a micro-batch: those that have nothing to do, and those that ask for a
/// second one beside the one that they have. Who has nothing comes first, so that nobody waits
/// while another one works ahead.
class AskingTargets {
 public:
  /// The node of each target.
  explicit AskingTargets(const std::vector<int>& nodes) : idle_(nodes), ahead_(nodes) {}

  /// One more target, with the next number.
  void add_target(int node) {
    idle_.add_target(node);
    ahead_.add_target(node);
  }
  /// The target asks from now on; no effect if it does already. `has_work`: it has a micro-batch.
  void add(int target, bool has_work) {
    if (!contains(target)) (has_work ? ahead_ : idle_).add(target);
  }
  /// The target has settled all that it had.
  void has_nothing(int target) {
    if (!ahead_.contains(target)) return;
    ahead_.remove(target);
    idle_.add(target);
  }
  void remove(int target) {
    idle_.remove(target);
    ahead_.remove(target);
  }
  bool contains(int target) const { return idle_.contains(target) || ahead_.contains(target); }
  /// Every target that asks.
  std::set<int> all() const {
    std::set<int> all = idle_.all();
    all.merge(ahead_.all());
    return all;
  }
  /// As IdleTargets does.
  void room_changed() {
    idle_.room_changed();
    ahead_.room_changed();
  }
  std::optional<std::pair<int, Production>> next(SamplerPolicy& sampler, int64_t now_ns) {
    if (auto idle = idle_.next(sampler, now_ns)) return idle;
    return ahead_.next(sampler, now_ns);
  }

 private:
  IdleTargets idle_, ahead_;
};

}  // namespace percheron
