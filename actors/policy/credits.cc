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

// There are few, and mostly the last is asked for.
uint64_t& Credits::bytes_of(StepBytes& steps, int64_t step) {
  auto place = steps.end();
  while (place != steps.begin() && std::prev(place)->first > step) --place;
  if (place != steps.begin() && std::prev(place)->first == step) return std::prev(place)->second;
  return steps.emplace(place, step, 0)->second;
}

bool Credits::try_grant(int node, const WorkUnit& unit, int64_t open_step) {
  PERCHERON_CHECK(grants_.count(unit.id) == 0, "a micro-batch holds one credit");
  Node& place = nodes_[node];
  if (place.in_use + unit.bytes > place.bytes_max) return false;
  if (ahead_max_ > 0 && place.units >= ahead_max_ && unit.step > open_step) return false;
  std::erase_if(step_bytes_, [open_step](const auto& step) { return step.first < open_step; });
  bytes_of(step_bytes_, unit.step) = unit.step_bytes;
  // For every earlier open step: all of it must fit beside what later steps hold here.
  uint64_t later = unit.bytes;
  auto held = place.by_step.rbegin();
  for (auto step = step_bytes_.rbegin(); step != step_bytes_.rend(); ++step) {
    while (held != place.by_step.rend() && held->first > step->first) later += (held++)->second;
    if (step->first >= unit.step) continue;
    if (later + step->second > place.bytes_max) return false;
  }
  place.in_use += unit.bytes;
  place.peak = std::max(place.peak, place.in_use);
  ++place.units;
  bytes_of(place.by_step, unit.step) += unit.bytes;
  grants_[unit.id] = {node, unit.step, unit.bytes};
  return true;
}

void Credits::release(MicroBatchId id) {
  const auto grant = grants_.find(id);
  if (grant == grants_.end()) return;
  const auto [node, step, bytes] = grant->second;
  Node& place = nodes_[node];
  place.in_use -= bytes;
  --place.units;
  uint64_t& held = bytes_of(place.by_step, step);
  held -= bytes;
  if (held == 0) std::erase_if(place.by_step, [](const auto& other) { return other.second == 0; });
  grants_.erase(grant);
}

void Credits::node_lost(int node) {
  nodes_[node].in_use = 0;
  nodes_[node].units = 0;
  nodes_[node].by_step.clear();
  for (auto grant = grants_.begin(); grant != grants_.end();) {
    grant = grant->second.node == node ? grants_.erase(grant) : std::next(grant);
  }
}

}  // namespace percheron
