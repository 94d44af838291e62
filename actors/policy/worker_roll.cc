#include "actors/policy/worker_roll.h"

#include <utility>

#include "base/check.h"

namespace percheron {

const char* worker_kind_name(WorkerKind kind) {
  return kind == WorkerKind::kTarget ? "target" : "trainer";
}

WorkerRoll::WorkerRoll(int targets, int trainers)
    : places_{{WorkerKind::kTarget, targets}, {WorkerKind::kTrainer, trainers}} {
  for (const auto& [kind, count] : places_) {
    std::set<int>& numbers = there_[kind];
    for (int number = 0; number < count; ++number) numbers.insert(numbers.end(), number);
  }
}

bool WorkerRoll::known(WorkerKind kind, int number) const {
  return 0 <= number && number < places_.at(kind);
}

bool WorkerRoll::lost(WorkerKind kind, int number) { return there_.at(kind).erase(number) != 0; }

bool WorkerRoll::ready(WorkerKind kind, int number) {
  return known(kind, number) && there_.at(kind).insert(number).second;
}

Homes::Homes(std::vector<int> target_nodes, std::vector<int> trainer_nodes) {
  PERCHERON_CHECK(!trainer_nodes.empty(), "a run has at least one trainer");
  std::set<int> nodes(target_nodes.begin(), target_nodes.end());
  nodes.insert(trainer_nodes.begin(), trainer_nodes.end());
  const std::set<int> with_trainers(trainer_nodes.begin(), trainer_nodes.end());
  for (size_t trainer = 0; trainer < trainer_nodes.size(); ++trainer) {
    of_trainer_.push_back(nodes.size() == 1 ? static_cast<int>(trainer) : trainer_nodes[trainer]);
  }
  for (size_t target = 0; target < target_nodes.size(); ++target) {
    const int node = target_nodes[target];
    const bool own = nodes.size() > 1 && with_trainers.count(node) != 0;
    of_target_.push_back(own ? node : of_trainer_[target % of_trainer_.size()]);
  }
}

}  // namespace percheron
