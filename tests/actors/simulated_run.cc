#include "tests/actors/simulated_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/actors/simulation.h"
#include "tests/actors/tiny_run.h"

namespace percheron {

namespace {

constexpr uint64_t kCrashesMax = 6;  // of one world

}  // namespace

std::vector<int> numbers(size_t count) {
  std::vector<int> list(count);
  for (size_t i = 0; i < count; ++i) list[i] = static_cast<int>(i);
  return list;
}

void SimulatedOutcome::add_before(const SimulatedOutcome& before) {
  deaths += before.deaths;
  late_words += before.late_words;
  overlaps += before.overlaps;
  pauses += before.pauses;
  messages += before.messages;
  delays += before.delays;
  cuts += before.cuts;
  connections += before.connections;
  crashes += before.crashes;
  added += before.added;
  retired += before.retired;
  torn += before.torn;
  unsaved += before.unsaved;
  refused += before.refused;
  early_sums += before.early_sums;
  taken_back += before.taken_back;
  ahead += before.ahead;
  unreadable += before.unreadable;
  rewinds += before.rewinds;
  membership_changes += before.membership_changes;
  recomputed += before.recomputed;
  requeued += before.requeued;
}

Simulation::Simulation(const SimulatedWorld& world, SimulatedDisk& disk, uint64_t life)
    : world_(world),
      setup_(*world.setup),
      random_(Random::keyed(world.seed, "faults", life)),
      network_(clock_, Random::keyed(world.seed, "network", life), world.faults.delays,
               world.canary),
      credits_(world_),
      held_out_(setup_.data.held_out ? 5 : 0),
      held_out_left_(held_out_),
      sampler_([this] { return next_unit(); }, credits_, 0),
      mailbox_(setup_.assignment, numbers(setup_.placement.trainers.size()), 0, world.prefetch),
      targets_(setup_.placement.targets.size()),
      trainers_(setup_.placement.trainers.size()),
      asking_(target_nodes()),
      disk_(disk) {
  SupervisorSettings settings;
  settings.setup = world_.setup;
  settings.stall_seconds = 30;
  settings.checksum_steps = 1;
  settings.worker_wait_seconds = 20;
  for (size_t t = 0; t < trainers_.size(); ++t) trainers_[t].number = static_cast<int>(t);
  if (const auto saved = life > 0 ? disk_.newest() : std::nullopt) {
    settings.resumed_from = saved->path;
    settings.progress = saved->progress;
    if (static_cast<int64_t>(saved->parameters.size()) != saved->progress.step) {
      violate(fmt::format("the run goes on from step {} with parameters of step {}",
                          saved->progress.step, saved->parameters.size()));
    }
    for (Trainer& trainer : trainers_) trainer.parameters = saved->parameters;
    next_step_ = outcome_.steps = saved->progress.step;
    next_epoch_ = setup_.steps.begin(next_step_).epoch;
    in_step_ = next_held_out_ = 0;
    sampler_.restart();  // It has looked at the very first micro-batch already.
    sampler_.set_open_step(next_step_);
  }
  supervisor_ = std::make_unique<RunSupervisor>(settings, *this, *this, clock_);
  groups_[0].members = numbers(trainers_.size());
}

std::vector<int> Simulation::target_nodes() const {
  std::vector<int> nodes;
  for (int target : numbers(setup_.placement.targets.size())) nodes.push_back(node_of(target));
  return nodes;
}

SimulatedOutcome Simulation::run() {
  supervisor_->start();
  to_sampler("supervisor", [this] { pump_sampler(); });
  for (size_t t = 0; t < targets_.size(); ++t) {
    (void)targets_[t].flow.ask();
    to_sampler("target" + std::to_string(t), [this, t] { target_idle(static_cast<int>(t)); });
  }
  for (const Trainer& trainer : trainers_) begin(trainer);
  const std::function<void()> tick = [this, &tick] {
    supervisor_->tick(0);
    if (!supervisor_->finished()) network_.after(100, tick);
  };
  network_.after(100, tick);
  while (!supervisor_->finished() && !crashed_ && outcome_.violations.empty() &&
         network_.deliver_next()) {
    if (++outcome_.messages > 2'000'000) {
      violate("it goes on for ever");
      break;
    }
    disturb();
    check_store();
  }
  outcome_.summary = supervisor_->summary();
  outcome_.delays = network_.delayed();
  outcome_.targets = static_cast<int64_t>(placed(WorkerKind::kTarget).size());
  outcome_.trainers = static_cast<int64_t>(placed(WorkerKind::kTrainer).size());
  outcome_.rewinds = counter(outcome_.summary, "rewinds_since_start");
  outcome_.membership_changes = counter(outcome_.summary, "membership_changes_since_start");
  outcome_.recomputed = counter(outcome_.summary, "micro_batches_recomputed_since_start");
  outcome_.requeued = counter(outcome_.summary, "micro_batches_requeued_since_start");
  if (crashed_) return outcome_;
  // What is trained again ends again.
  for (const auto& [text, times] : epoch_ends_) {
    if (times > 1 + outcome_.rewinds) violate(fmt::format("\"{}\" was said {} times", text, times));
  }
  const bool ended = outcome_.end && outcome_.end->ok();
  if (ended && outcome_.summary.epochs != setup_.steps.epochs()) {
    violate(fmt::format("{} epochs have ended, not {}", outcome_.summary.epochs,
                        setup_.steps.epochs()));
  }
  return outcome_;
}

// --- checkers ------------------------------------------------------------------------------------

Sums Simulation::planned(int64_t step) const {
  const PlannedStep range = setup_.steps.at(step);
  Sums sums;
  for (int64_t i = 0; i < range.count; ++i) sums[{range.epoch, range.first + i}] = 1;
  return sums;
}

std::string difference(const Parameters& parameters, const Parameters& expected) {
  std::string text = fmt::format(": of {} steps", parameters.size());
  for (size_t step = 0; step < std::min(parameters.size(), expected.size()); ++step) {
    for (const auto& [id, times] : expected[step]) {
      const auto added = parameters[step].find(id);
      const int found = added == parameters[step].end() ? 0 : added->second;
      if (found != times) text += fmt::format(", ({}, {}) {} times", id.epoch, id.index, found);
    }
  }
  return text;
}

// Invariants 1, 3, 5 and 8: every member's parameters contain exactly the planned steps.
void Simulation::check_step(const StepReport& report) {
  outcome_.steps = report.step;
  Parameters expected;
  for (int64_t step = 0; step < report.step; ++step) expected.push_back(planned(step));
  for (const Trainer& trainer : trainers_) {
    if (!trainer.alive || !trainer.member || trainer.given_up || trainer.place.ends) continue;
    if (trainer.parameters != expected) {
      violate(fmt::format("trainer {} has other parameters than planned after step {}{}",
                          trainer.number, report.step, difference(trainer.parameters, expected)));
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

namespace {

// As it is placed after a crash: where workers were added and taken out, with those that stayed.
std::shared_ptr<const RunSetup> placed_again(const RunSetup& before,
                                             const SimulatedOutcome& outcome) {
  const auto setup = std::make_shared<RunSetup>(before);
  const DeviceId device = before.placement.targets.front();
  setup->placement.targets.assign(static_cast<size_t>(outcome.targets), device);
  setup->placement.trainers.assign(static_cast<size_t>(outcome.trainers), device);
  return setup;
}

}  // namespace

SimulatedOutcome simulate_run(const SimulatedWorld& world) {
  SimulatedDisk disk(world.seed, world.canary);
  SimulatedOutcome before;
  SimulatedWorld now = world;
  for (uint64_t life = 0;; ++life) {
    if (life == kCrashesMax) now.faults.crashes = 0;
    SimulatedOutcome outcome = Simulation(now, disk, life).run();
    const bool over = outcome.crashes == 0 || !outcome.violations.empty();
    outcome.add_before(before);
    if (over) return outcome;
    disk.crash();
    now.setup = placed_again(*now.setup, outcome);
    before = outcome;
  }
}

}  // namespace percheron
