#include "tests/actors/simulated_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/actors/simulation.h"
#include "tests/actors/tiny_run.h"

namespace percheron {

std::vector<int> numbers(size_t count) {
  std::vector<int> list(count);
  for (size_t i = 0; i < count; ++i) list[i] = static_cast<int>(i);
  return list;
}

Simulation::Simulation(const SimulatedWorld& world)
    : world_(world),
      setup_(*world.setup),
      random_(Random::keyed(world.seed, "faults", 0)),
      network_(clock_, Random::keyed(world.seed, "network", 0)),
      credits_(world_),
      held_out_(setup_.data.held_out ? 5 : 0),
      held_out_left_(held_out_),
      sampler_([this] { return next_unit(); }, credits_, 0),
      mailbox_(setup_.assignment, numbers(setup_.placement.trainers.size()), 0),
      targets_(setup_.placement.targets.size()),
      trainers_(setup_.placement.trainers.size()) {
  SupervisorSettings settings;
  settings.setup = world_.setup;
  settings.stall_seconds = 30;
  settings.checksum_steps = 1;
  settings.worker_wait_seconds = 20;
  supervisor_ = std::make_unique<RunSupervisor>(settings, *this, *this, clock_);
  for (size_t t = 0; t < trainers_.size(); ++t) trainers_[t].number = static_cast<int>(t);
  groups_[0].members = numbers(trainers_.size());
}

SimulatedOutcome Simulation::run() {
  supervisor_->start();
  to_sampler("supervisor", [this] { pump_sampler(); });
  for (size_t t = 0; t < targets_.size(); ++t) {
    to_sampler("target" + std::to_string(t), [this, t] { target_idle(static_cast<int>(t)); });
  }
  for (const Trainer& trainer : trainers_) idle(trainer);
  const std::function<void()> tick = [this, &tick] {
    supervisor_->tick(0);
    if (!supervisor_->finished()) network_.after(100, tick);
  };
  network_.after(100, tick);
  while (!supervisor_->finished() && outcome_.violations.empty() && network_.deliver_next()) {
    if (++outcome_.messages > 2'000'000) {
      violate("it goes on for ever");
      break;
    }
    disturb();
    check_store();
  }
  outcome_.summary = supervisor_->summary();
  // What is trained again ends again.
  const int64_t rewinds = counter(outcome_.summary, "rewinds_since_start");
  for (const auto& [text, times] : epoch_ends_) {
    if (times > 1 + rewinds) violate(fmt::format("\"{}\" was said {} times", text, times));
  }
  const bool ended = outcome_.end && outcome_.end->ok();
  if (ended && outcome_.summary.epochs != setup_.steps.epochs()) {
    violate(fmt::format("{} epochs have ended, not {}", outcome_.summary.epochs,
                        setup_.steps.epochs()));
  }
  return outcome_;
}

// --- faults --------------------------------------------------------------------------------------

void Simulation::disturb() {
  if (random_.uniform() < world_.pauses) {
    ++outcome_.pauses;
    to_supervisor("operator", [this] { supervisor_->order(RunOrder::kPause); });
    if (random_.below(2)) {
      to_supervisor("operator", [this] { supervisor_->order(RunOrder::kSnapshot); });
    }
    network_.after(1 + network_.delay(500) / kMillisecond, [this] {
      to_supervisor("operator", [this] { supervisor_->order(RunOrder::kResume); });
    });
  }
  if (world_.scales > 0 && random_.uniform() < world_.scales) scale();
  if (random_.uniform() >= world_.deaths) return;
  const uint64_t what = random_.below(5);
  if (what == 0 && world_.nodes > 1)
    return kill_node(static_cast<int>(random_.below(world_.nodes)));
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

void Simulation::kill_and_tell(WorkerKind kind, int number) {
  if (!kill(kind, number)) return;
  network_.after(network_.delay(100) / kMillisecond, [=, this] {
    to_supervisor("watcher", [=, this] {
      supervisor_->worker_lost(kind, number);
      bring_back_later(kind, number);
    });
  });
}

// Who sees the loss starts it again, when all that was ordered of the dead is gone.
void Simulation::bring_back_later(WorkerKind kind, int number) {
  network_.after(
      2 * static_cast<int64_t>(kSlowestMessage) + 1 + network_.delay(1000) / kMillisecond,
      [=, this] { bring_back(kind, number); });
}

void Simulation::bring_back(WorkerKind kind, int number) {
  if (kind == WorkerKind::kTarget ? targets_[static_cast<size_t>(number)].retired
                                  : trainers_[static_cast<size_t>(number)].retired) {
    return;
  }
  if (kind == WorkerKind::kTarget) {
    Target& target = targets_[static_cast<size_t>(number)];
    target.alive = true;
    ++target.life;
  } else {
    Trainer& trainer = trainers_[static_cast<size_t>(number)];
    trainer.alive = true;
    ++trainer.life;
    trainer.sums.clear();
    trainer.reduced.reset();
    trainer.membership = 0;
    trainer.member = false;
    const bool skip = world_.canary == Canary::kNewcomerIsNotRestored ||
                      world_.canary == Canary::kChecksumIsNotCompared;
    if (!skip) trainer.parameters.clear();
  }
  to_supervisor("watcher", [=, this] { supervisor_->worker_ready(kind, number); });
}

void Simulation::kill_node(int node) {
  std::vector<std::pair<WorkerKind, int>> dead;
  for (WorkerKind kind : {WorkerKind::kTarget, WorkerKind::kTrainer}) {
    const size_t count = kind == WorkerKind::kTrainer ? trainers_.size() : targets_.size();
    for (int number : numbers(count)) {
      if (node_of(number) == node && kill(kind, number)) dead.emplace_back(kind, number);
    }
  }
  std::erase_if(store_, [node](const auto& entry) { return entry.second == node; });
  // Who was dead already may be back before all know of the node.
  network_.after(network_.delay(100) / kMillisecond, [=, this] {
    to_supervisor("watcher", [=, this] {
      for (const auto& [kind, number] : dead) supervisor_->worker_lost(kind, number);
      supervisor_->node_lost(node);
      for (const auto& [kind, number] : dead) bring_back_later(kind, number);
    });
  });
}

// --- workers that come and go --------------------------------------------------------------------

void Simulation::scale() {
  const WorkerKind kind = random_.below(2) ? WorkerKind::kTrainer : WorkerKind::kTarget;
  random_.below(2) ? add(kind) : retire(kind);
}

// Whoever places it starts it first.
void Simulation::add(WorkerKind kind) {
  constexpr size_t kMax = 12;
  const bool is_target = kind == WorkerKind::kTarget;
  const int number = static_cast<int>(is_target ? targets_.size() : trainers_.size());
  if (number >= static_cast<int>(kMax)) return;
  ++outcome_.added;
  if (is_target) {
    targets_.emplace_back().admitted = false;
  } else {
    Trainer& trainer = trainers_.emplace_back();
    trainer.number = number;
    trainer.member = trainer.admitted = false;
  }
  to_supervisor("watcher", [=, this] {
    supervisor_->worker_added(kind, number, node_of(number), "cpu:0");
    bool& admitted = is_target ? targets_[static_cast<size_t>(number)].admitted
                               : trainers_[static_cast<size_t>(number)].admitted;
    admitted = true;
    to_supervisor("watcher", [=, this] { supervisor_->worker_ready(kind, number); });
  });
}

void Simulation::retire(WorkerKind kind) {
  const auto one_of = [this](auto& workers) -> std::optional<int> {
    std::vector<int> staying;
    for (size_t i = 0; i < workers.size(); ++i) {
      if (workers[i].admitted && !workers[i].retired) staying.push_back(static_cast<int>(i));
    }
    if (staying.size() < 2) return std::nullopt;
    const int number = staying[random_.below(staying.size())];
    workers[static_cast<size_t>(number)].retired = true;
    return number;
  };
  const std::optional<int> number =
      kind == WorkerKind::kTarget ? one_of(targets_) : one_of(trainers_);
  if (!number) return;
  ++outcome_.retired;
  to_supervisor("watcher", [=, this] { supervisor_->worker_retired(kind, *number); });
}

// The process of one that has left ends a little later.
void Simulation::on_workers(const WorkersReport& report) {
  const auto end = [this](auto& workers, size_t number) {
    if (!workers[number].retired || workers[number].gone) return;
    workers[number].gone = true;
    network_.after(network_.delay(200) / kMillisecond,
                   [&workers, number] { workers[number].alive = false; });
  };
  for (size_t number = 0; number < targets_.size(); ++number) {
    if (report.targets.count(static_cast<int>(number)) == 0) end(targets_, number);
  }
  for (size_t number = 0; number < trainers_.size(); ++number) {
    const std::vector<int>& members = report.trainers;
    if (std::ranges::find(members, static_cast<int>(number)) != members.end()) continue;
    if (trainers_[number].retired) trainers_[number].member = false;
    end(trainers_, number);
  }
}

// --- checkers ------------------------------------------------------------------------------------

Sums Simulation::planned(int64_t step) const {
  const PlannedStep range = setup_.steps.at(step);
  Sums sums;
  for (int64_t i = 0; i < range.count; ++i) sums[{range.epoch, range.first + i}] = 1;
  return sums;
}

// Invariants 1, 3, 5 and 8: every member's parameters contain exactly the planned steps.
void Simulation::check_step(const StepReport& report) {
  outcome_.steps = report.step;
  Parameters expected;
  for (int64_t step = 0; step < report.step; ++step) expected.push_back(planned(step));
  for (const Trainer& trainer : trainers_) {
    if (!trainer.alive || !trainer.member) continue;
    if (trainer.parameters != expected) {
      violate(fmt::format("trainer {} has other parameters than planned after step {}",
                          trainer.number, report.step));
    }
  }
}

// Invariant 2, by the features that are there.
void Simulation::check_store() {
  std::map<int, uint64_t> bytes;
  for (const auto& [id, node] : store_) ++bytes[node];
  for (const auto& [node, sum] : bytes) {
    if (sum > world_.bytes_max) violate(fmt::format("node {} holds {} bytes", node, sum));
  }
}

SimulatedOutcome simulate_run(const SimulatedWorld& world) { return Simulation(world).run(); }

}  // namespace percheron
