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
