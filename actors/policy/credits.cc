#include "actors/policy/credits.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace percheron {

Credits::Credits(std::vector<uint64_t> bytes_max, int64_t ahead_max) : ahead_max_(ahead_max) {
  for (uint64_t limit : bytes_max) add_node(limit);
}

Status Credits::check_limit(uint64_t bytes_max, uint64_t step_bytes) {
  if (step_bytes <= bytes_max) return ok_status();
  return invalid_argument(fmt::format(
      "features.bytes_max is {}, but the features of one step need {} bytes: raise it, or lower "
      "train.micro_batches_per_step or data.token_budget",
      bytes_max, step_bytes));
}

bool Credits::try_grant(int node, const WorkUnit& unit, int64_t open_step) {
  PERCHERON_CHECK(grants_.count(unit.id) == 0, "a micro-batch holds one credit");
  Node& place = nodes_[node];
  if (place.in_use + unit.bytes > place.bytes_max) return false;
  if (ahead_max_ > 0 && place.units >= ahead_max_ && unit.step > open_step) return false;
  step_bytes_.erase(step_bytes_.begin(), step_bytes_.lower_bound(open_step));
  step_bytes_[unit.step] = unit.step_bytes;
  // For every earlier open step: all of it must fit beside what later steps hold here.
  uint64_t later = unit.bytes;
  auto held = place.by_step.rbegin();
  for (auto step = std::make_reverse_iterator(step_bytes_.end()); step != step_bytes_.rend();
       ++step) {
    while (held != place.by_step.rend() && held->first > step->first) later += (held++)->second;
    if (step->first >= unit.step) continue;
    if (later + step->second > place.bytes_max) return false;
  }
  place.in_use += unit.bytes;
  place.peak = std::max(place.peak, place.in_use);
  ++place.units;
  place.by_step[unit.step] += unit.bytes;
  grants_[unit.id] = {node, unit};
  return true;
}

void Credits::release(MicroBatchId id) {
  const auto grant = grants_.find(id);
  if (grant == grants_.end()) return;
  Node& place = nodes_[grant->second.node];
  const WorkUnit& unit = grant->second.unit;
  place.in_use -= unit.bytes;
  --place.units;
  const auto step = place.by_step.find(unit.step);
  step->second -= unit.bytes;
  if (step->second == 0) place.by_step.erase(step);
  grants_.erase(grant);
}

void Credits::node_lost(int node) {
  nodes_[node].in_use = 0;
  nodes_[node].units = 0;
  nodes_[node].by_step.clear();
  std::erase_if(grants_, [node](const auto& entry) { return entry.second.node == node; });
}

}  // namespace percheron
