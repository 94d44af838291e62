// Workers that come to a simulated run, and leave it.

#include <algorithm>

#include "tests/actors/simulation.h"

namespace percheron {

Simulation::Place& Simulation::place_of(WorkerKind kind, int number) {
  return kind == WorkerKind::kTarget ? targets_[static_cast<size_t>(number)].place
                                     : trainers_[static_cast<size_t>(number)].place;
}

std::vector<int> Simulation::placed(WorkerKind kind) {
  const bool is_target = kind == WorkerKind::kTarget;
  std::vector<int> staying = numbers(is_target ? targets_.size() : trainers_.size());
  std::erase_if(staying, [=, this](int number) {
    const Place& place = place_of(kind, number);
    return !place.admitted || place.retired;
  });
  return staying;
}

void Simulation::scale() {
  const WorkerKind kind = random_.below(2) ? WorkerKind::kTrainer : WorkerKind::kTarget;
  random_.below(2) ? add_worker(kind) : retire_worker(kind);
}

// Whoever places it starts it first. It may die before the run knows it.
void Simulation::add_worker(WorkerKind kind) {
  constexpr size_t kMax = 12;
  const bool is_target = kind == WorkerKind::kTarget;
  const size_t count = is_target ? targets_.size() : trainers_.size();
  if (count >= kMax) return;
  const int number = static_cast<int>(count);
  ++outcome_.added;
  if (is_target) {
    targets_.emplace_back();
  } else {
    Trainer& trainer = trainers_.emplace_back();
    trainer.number = number;
    trainer.member = false;
  }
  place_of(kind, number).admitted = false;
  to_supervisor("watcher", [=, this] {
    supervisor_->worker_added(kind, number, node_of(number), "cpu:0");
    place_of(kind, number).admitted = true;
    if (!is_alive(kind, number)) return;
    to_supervisor("watcher", [=, this] { supervisor_->worker_ready(kind, number); });
  });
}

// One at least stays, though it may be dead at the moment.
void Simulation::retire_worker(WorkerKind kind) {
  to_supervisor("watcher", [=, this] {
    const std::vector<int> staying = placed(kind);
    if (staying.size() < 2) return;
    const int number = staying[random_.below(staying.size())];
    place_of(kind, number).retired = true;
    ++outcome_.retired;
    supervisor_->worker_retired(kind, number);
  });
}

// The process of one that has left ends a little later.
void Simulation::on_workers(const WorkersReport& report) {
  const auto end = [this](WorkerKind kind, int number) {
    Place& place = place_of(kind, number);
    if (!place.retired || std::exchange(place.ends, true)) return;
    network_.after(network_.delay(200) / kMillisecond, [=, this] {
      (kind == WorkerKind::kTarget ? targets_[static_cast<size_t>(number)].alive
                                   : trainers_[static_cast<size_t>(number)].alive) = false;
    });
  };
  for (int target : numbers(targets_.size())) {
    if (report.targets.count(target) == 0) end(WorkerKind::kTarget, target);
  }
  for (int trainer : numbers(trainers_.size())) {
    const bool member = std::ranges::find(report.trainers, trainer) != report.trainers.end();
    if (!member) end(WorkerKind::kTrainer, trainer);
  }
}

}  // namespace percheron
