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
    retired_[kind];
  }
}

bool WorkerRoll::known(WorkerKind kind, int number) const {
  return 0 <= number && number < places_.at(kind);
}

bool WorkerRoll::lost(WorkerKind kind, int number) { return there_.at(kind).erase(number) != 0; }

bool WorkerRoll::ready(WorkerKind kind, int number) {
  return known(kind, number) && !retired(kind, number) && there_.at(kind).insert(number).second;
}

int WorkerRoll::add(WorkerKind kind) { return places_.at(kind)++; }

bool WorkerRoll::retire(WorkerKind kind, int number) {
  return known(kind, number) && retired_.at(kind).insert(number).second;
}

Homes::Homes(std::vector<int> target_nodes, std::vector<int> trainer_nodes)
    : target_nodes_(target_nodes.begin(), target_nodes.end()),
      trainer_nodes_(trainer_nodes.begin(), trainer_nodes.end()) {
  PERCHERON_CHECK(!trainer_nodes.empty(), "a run has at least one trainer");
  assign();
}

void Homes::add(WorkerKind kind, int node) {
  (kind == WorkerKind::kTarget ? target_nodes_ : trainer_nodes_).push_back(node);
  assign();
}

void Homes::retire(WorkerKind kind, int number) {
  (kind == WorkerKind::kTarget ? target_nodes_ : trainer_nodes_).at(static_cast<size_t>(number)) =
      std::nullopt;
  assign();
}

void Homes::assign() {
  std::set<int> nodes, with_trainers;
  for (const std::optional<int>& node : target_nodes_) {
    if (node) nodes.insert(*node);
  }
  for (const std::optional<int>& node : trainer_nodes_) {
    if (node) with_trainers.insert(*node);
  }
  nodes.insert(with_trainers.begin(), with_trainers.end());
  std::vector<int> homes;  // of the trainers that take from them, in turn
  of_trainer_.resize(trainer_nodes_.size());
  for (size_t trainer = 0; trainer < trainer_nodes_.size(); ++trainer) {
    if (!trainer_nodes_[trainer]) continue;
    of_trainer_[trainer] = nodes.size() == 1 ? static_cast<int>(trainer) : *trainer_nodes_[trainer];
    homes.push_back(of_trainer_[trainer]);
  }
  of_target_.resize(target_nodes_.size());
  for (size_t target = 0; target < target_nodes_.size(); ++target) {
    if (!target_nodes_[target] || homes.empty()) continue;
    const int node = *target_nodes_[target];
    const bool own = nodes.size() > 1 && with_trainers.count(node) != 0;
    of_target_[target] = own ? node : homes[target % homes.size()];
  }
}

}  // namespace percheron
