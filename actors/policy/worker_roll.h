#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace percheron {

/// What a worker of a run does.
enum class WorkerKind { kTarget, kTrainer };

/// "target" or "trainer".
const char* worker_kind_name(WorkerKind kind);

/// Which workers of a run are there. Numbers only grow: one that was retired is never given again.
class WorkerRoll {
 public:
  /// At first all are there: targets and trainers are numbered from 0.
  WorkerRoll(int targets, int trainers);

  /// The run has a place for such a worker.
  bool known(WorkerKind kind, int number) const;
  /// False if it was away already, or is not known.
  bool lost(WorkerKind kind, int number);
  /// False if it was there already, is retired, or is not known.
  bool ready(WorkerKind kind, int number);
  /// A place for one more, which is away; returns its number.
  int add(WorkerKind kind);
  /// The worker is to leave: once it is lost it does not come back. False if it was to leave
  /// already, or is not known.
  bool retire(WorkerKind kind, int number);
  bool retired(WorkerKind kind, int number) const { return retired_.at(kind).count(number) != 0; }
  /// Numbers that were given so far.
  int places(WorkerKind kind) const { return places_.at(kind); }

  bool there(WorkerKind kind, int number) const { return there_.at(kind).count(number) != 0; }
  const std::set<int>& there(WorkerKind kind) const { return there_.at(kind); }

 private:
  std::map<WorkerKind, int> places_;
  std::map<WorkerKind, std::set<int>> there_, retired_;
};

/// Where tickets wait. In one node every trainer has a deque, which targets fill in turn; among
/// several, every node with trainers has one: features are read where they were made as long as
/// there are any. Where a ticket waits decides who is likely to take it, nothing else.
class Homes {
 public:
  /// The node of each target and trainer; at least one trainer.
  Homes(std::vector<int> target_nodes, std::vector<int> trainer_nodes);

  /// One more, with the next number.
  void add(WorkerKind kind, int node);
  /// Nothing waits for it any more.
  void retire(WorkerKind kind, int number);

  int of_target(int target) const { return of_target_[static_cast<size_t>(target)]; }
  int of_trainer(int trainer) const { return of_trainer_[static_cast<size_t>(trainer)]; }

 private:
  using Nodes = std::vector<std::optional<int>>;  // none: retired
  void assign();

  Nodes target_nodes_, trainer_nodes_;
  std::vector<int> of_target_, of_trainer_;
};

}  // namespace percheron
