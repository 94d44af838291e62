#include "actors/policy/idle_targets.h"

namespace percheron {

IdleTargets::IdleTargets(std::vector<int> nodes) : nodes_(std::move(nodes)) {}

void IdleTargets::unblock(int node) {
  const auto blocked = blocked_.find(node);
  if (blocked == blocked_.end()) return;
  by_bytes_.erase({blocked->second, node});
  blocked_.erase(blocked);
}

void IdleTargets::add(int target) {
  const int node = nodes_[static_cast<size_t>(target)];
  waiting_[node].insert(target);
  unblock(node);
  ready_.insert(node);
}

void IdleTargets::remove(int target) {
  const int node = nodes_[static_cast<size_t>(target)];
  const auto waiting = waiting_.find(node);
  if (waiting == waiting_.end()) return;
  waiting->second.erase(target);
  if (!waiting->second.empty()) return;
  waiting_.erase(waiting);
  ready_.erase(node);
  unblock(node);
}

bool IdleTargets::contains(int target) const {
  const auto waiting = waiting_.find(nodes_[static_cast<size_t>(target)]);
  return waiting != waiting_.end() && waiting->second.count(target) != 0;
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
    const int target = *waiting_.at(node).begin();
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
