#include "actors/policy/idle_targets.h"

#include <algorithm>

namespace percheron {

IdleTargets::IdleTargets(std::vector<int> nodes) : nodes_(std::move(nodes)) {}

void IdleTargets::unblock(int node) {
  const auto blocked = blocked_.find(node);
  if (blocked == blocked_.end()) return;
  by_bytes_.erase({blocked->second, node});
  blocked_.erase(node);
}

void IdleTargets::add(int target) {
  const int node = nodes_[static_cast<size_t>(target)];
  std::vector<int>& waiting = waiting_[node];
  const auto place = std::ranges::lower_bound(waiting, target);
  if (place == waiting.end() || *place != target) waiting.insert(place, target);
  unblock(node);
  ready_.insert(node);
}

void IdleTargets::remove(int target) {
  const int node = nodes_[static_cast<size_t>(target)];
  std::vector<int>& waiting = waiting_[node];
  std::erase(waiting, target);
  if (!waiting.empty()) return;
  ready_.erase(node);
  unblock(node);
}

bool IdleTargets::contains(int target) const {
  const auto waiting = waiting_.find(nodes_[static_cast<size_t>(target)]);
  return waiting != waiting_.end() && std::ranges::binary_search(waiting->second, target);
}

std::set<int> IdleTargets::all() const {
  std::set<int> all;
  for (const auto& [node, targets] : waiting_) all.insert(targets.begin(), targets.end());
  return all;
}

void IdleTargets::room_changed() {
  for (const auto& [node, bytes] : blocked_) ready_.insert(node);
  blocked_.clear();
  by_bytes_.clear();
}

std::optional<std::pair<int, Production>> IdleTargets::next(SamplerPolicy& sampler,
                                                            int64_t now_ns) {
  while (const WorkUnit* unit = sampler.upcoming()) {
    if (ready_.empty() && !by_bytes_.empty() && by_bytes_.rbegin()->first > unit->bytes) {
      const int node = by_bytes_.rbegin()->second;
      unblock(node);
      ready_.insert(node);
    }
    if (ready_.empty()) return std::nullopt;
    const int node = *ready_.begin();
    const int target = waiting_.at(node).front();
    const uint64_t bytes = unit->bytes;
    ++asked_;
    if (const auto production = sampler.next(target, node, now_ns)) {
      remove(target);
      return std::pair(target, *production);
    }
    ready_.erase(node);
    blocked_[node] = bytes;
    by_bytes_.insert({bytes, node});
  }
  return std::nullopt;
}

}  // namespace percheron
