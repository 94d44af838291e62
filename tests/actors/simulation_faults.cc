// What goes wrong in a simulated run.

#include <algorithm>

#include "tests/actors/simulation.h"

namespace percheron {

void Simulation::disturb() {
  const SimulatedFaults& faults = world_.faults;
  if (random_.uniform() < faults.pauses) {
    ++outcome_.pauses;
    to_supervisor("operator", [this] { supervisor_->order(RunOrder::kPause); });
    if (random_.below(2)) {
      to_supervisor("operator", [this] { supervisor_->order(RunOrder::kSnapshot); });
    }
    network_.after(1 + network_.delay(500) / kMillisecond, [this] {
      to_supervisor("operator", [this] { supervisor_->order(RunOrder::kResume); });
    });
  }
  if (happens(faults.crashes)) return crash();
  if (happens(faults.scales)) scale();
  if (happens(faults.cuts)) {
    ++outcome_.cuts;
    if (random_.below(3) == 0) {
      for (const auto& [kind, number] : workers(any_node())) cut_off(kind, number);
    } else {
      const auto [kind, number] = any_worker();
      cut_off(kind, number);
    }
  }
  if (happens(faults.connections)) {
    const auto [kind, number] = any_worker();
    connect_again(kind, number);
  }
  if (random_.uniform() >= faults.deaths) return;
  const uint64_t what = random_.below(5);
  if (what == 0 && world_.nodes > 1) return kill_node(any_node());
  const WorkerKind kind = what < 3 ? WorkerKind::kTrainer : WorkerKind::kTarget;
  const size_t count = kind == WorkerKind::kTrainer ? trainers_.size() : targets_.size();
  kill_and_tell(kind, static_cast<int>(random_.below(count)));
}

bool Simulation::kill(WorkerKind kind, int number) {
  bool& alive = kind == WorkerKind::kTrainer ? trainers_[static_cast<size_t>(number)].alive
                                             : targets_[static_cast<size_t>(number)].alive;
  if (!alive) return false;
  ++outcome_.deaths;
  alive = false;
  return true;
}

int64_t Simulation::life_of(WorkerKind kind, int number) const {
  return kind == WorkerKind::kTrainer ? trainers_[static_cast<size_t>(number)].life
                                      : targets_[static_cast<size_t>(number)].life;
}

bool Simulation::is_alive(WorkerKind kind, int number) const {
  return kind == WorkerKind::kTrainer ? trainers_[static_cast<size_t>(number)].alive
                                      : targets_[static_cast<size_t>(number)].alive;
}

void Simulation::kill_and_tell(WorkerKind kind, int number) {
  if (!kill(kind, number)) return;
  network_.after(network_.delay(100) / kMillisecond,
                 [=, this, life = life_of(kind, number)] { lose(kind, number, life); });
}

void Simulation::lose(WorkerKind kind, int number, int64_t life) {
  to_supervisor("watcher", [=, this] {
    if (life_of(kind, number) != life) return;  // Word of one that was replaced meanwhile.
    tell_lost(kind, number);
    bring_back_later(kind, number);
  });
}

void Simulation::tell_lost(WorkerKind kind, int number) {
  supervisor_->worker_lost(kind, number);
  supervisor_->worker_lost(kind, number);  // as when both ends of a link say it
  if (kind != WorkerKind::kTrainer || number != source_ || !written_elsewhere_) return;
  CheckpointReport report;
  report.step = *std::exchange(written_elsewhere_, std::nullopt);
  report.error = "the trainer that wrote it is gone";
  supervisor_->checkpoint_written(report, unavailable(report.error));
}

// Who sees the loss starts it again, when all that was ordered of the dead is gone.
void Simulation::bring_back_later(WorkerKind kind, int number) {
  network_.after(
      2 * static_cast<int64_t>(kSlowestMessage) + 1 + network_.delay(1000) / kMillisecond,
      [=, this, life = life_of(kind, number)] {
        if (life_of(kind, number) == life) bring_back(kind, number);
      });
}

void Simulation::begin_life(WorkerKind kind, int number) {
  if (kind == WorkerKind::kTarget) {
    Target& target = targets_[static_cast<size_t>(number)];
    target.alive = true;
    ++target.life;
    target.flow = TargetFlow();
    target.given.clear();
    return;
  }
  Trainer& trainer = trainers_[static_cast<size_t>(number)];
  trainer.alive = true;
  ++trainer.life;
  trainer.sums.clear();
  trainer.last_added.reset();
  trainer.leases = TrainerLeases();
  trainer.reduced.reset();
  trainer.put_in.reset();
  trainer.last_of.reset();
  trainer.membership = 0;
  trainer.member = trainer.given_up = false;
  const bool skip = world_.canary == Canary::kNewcomerIsNotRestored ||
                    world_.canary == Canary::kChecksumIsNotCompared;
  if (!skip) trainer.parameters.clear();
}

void Simulation::bring_back(WorkerKind kind, int number) {
  if (place_of(kind, number).retired) return;
  begin_life(kind, number);
  to_supervisor("watcher", [=, this] {
    supervisor_->worker_ready(kind, number);
    supervisor_->worker_ready(kind, number);  // as when both ends of a link say it
  });
}

void Simulation::kill_node(int node) {
  std::vector<std::pair<WorkerKind, int>> dead = workers(node);
  std::erase_if(dead, [this](const auto& worker) { return !kill(worker.first, worker.second); });
  std::erase_if(store_, [node](const auto& entry) { return entry.second == node; });
  std::vector<int64_t> lives;
  for (const auto& [kind, number] : dead) lives.push_back(life_of(kind, number));
  // Who was dead already may be back before all know of the node.
  network_.after(network_.delay(100) / kMillisecond, [=, this] {
    for (size_t i = 0; i < dead.size(); ++i) lose(dead[i].first, dead[i].second, lives[i]);
    to_supervisor("watcher", [=, this] { supervisor_->node_lost(node); });
  });
}

std::vector<std::pair<WorkerKind, int>> Simulation::workers(std::optional<int> node) const {
  std::vector<std::pair<WorkerKind, int>> list;
  for (WorkerKind kind : {WorkerKind::kTarget, WorkerKind::kTrainer}) {
    const size_t count = kind == WorkerKind::kTrainer ? trainers_.size() : targets_.size();
    for (int number : numbers(count)) {
      if (!node || node_of(number) == *node) list.emplace_back(kind, number);
    }
  }
  return list;
}

std::pair<WorkerKind, int> Simulation::any_worker() {
  const auto all = workers(std::nullopt);
  return all[random_.below(all.size())];
}

int Simulation::any_node() {
  return static_cast<int>(random_.below(static_cast<uint64_t>(world_.nodes)));
}

// What it says and hears waits for the end of the cut. If that takes long it is given up, while it
// still works, and started anew; what it has said is heard long after.
void Simulation::cut_off(WorkerKind kind, int number) {
  constexpr uint64_t kLongest = 2000, kPatience = 300;  // milliseconds
  const int64_t lasts = network_.delay(kLongest);
  const bool trainer = kind == WorkerKind::kTrainer;
  const int64_t life = life_of(kind, number);
  network_.cut(trainer ? name(number) : target_name(number, life), clock_.now + lasts);
  const int64_t patience = static_cast<int64_t>(kPatience) * kMillisecond;
  if (lasts < patience) return;
  network_.at(clock_.now + patience, [=, this] {
    if (!is_alive(kind, number) || life_of(kind, number) != life) return;
    ++outcome_.deaths;
    if (trainer) trainers_[static_cast<size_t>(number)].given_up = true;
    lose(kind, number, life);
  });
}

// Its process has ended and another has begun before anyone has heard of the end.
void Simulation::connect_again(WorkerKind kind, int number) {
  to_supervisor("watcher", [=, this] {
    if (!is_alive(kind, number) || !supervisor_->there(kind, number)) return;
    if (place_of(kind, number).retired) return;  // Nobody starts that one anew.
    ++outcome_.connections;
    begin_life(kind, number);
    if (world_.canary == Canary::kSecondConnectionIsNotNoticed) return;
    tell_lost(kind, number);
    supervisor_->worker_ready(kind, number);
  });
}

void Simulation::crash() {
  ++outcome_.crashes;
  crashed_ = true;
}

Result<std::string> Simulation::write_to_disk(const Parameters& parameters,
                                              const RunProgress& progress) {
  const int64_t step = progress.step;
  if (step > 0 && step < setup_.steps.steps()) {
    const bool faulty = happens(world_.faults.disk);
    if (faulty || random_.uniform() < world_.faults.deaths) {
      random_.below(2) ? disk_.be_full() : disk_.fail_once();
    }
    if (world_.faults.crashes > 0 && random_.below(10) == 0) {
      disk_.lose_power_while_writing();
      ++outcome_.torn;
      crash();
    }
  }
  Result<std::string> path = disk_.write(parameters, progress);
  disk_.recover();
  if (path.ok()) return path;
  ++outcome_.unsaved;
  if (world_.canary == Canary::kFullDiskIsNotNoticed) {
    return "runs/simulated/step-" + std::to_string(step);
  }
  return path;
}

}  // namespace percheron
