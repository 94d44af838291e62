#include "tests/actors/simulated_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "base/hash.h"

namespace percheron {
namespace {

/// What a trainer has learnt: the micro-batches of each step, with how often each was added.
using Sums = std::map<MicroBatchId, int>;
using Parameters = std::vector<Sums>;

uint32_t checksum_of(const Parameters& parameters) {
  std::string text;
  for (const Sums& step : parameters) {
    for (const auto& [id, times] : step) text += fmt::format("{}.{}x{} ", id.epoch, id.index, times);
    text += ";";
  }
  return crc32c(std::as_bytes(std::span(text.data(), text.size())), 0);
}

class VirtualClock final : public Clock {
 public:
  int64_t monotonic_ns() const override { return now; }
  double unix_seconds() const override { return 0; }
  int64_t now = 0;
};

constexpr int64_t kMillisecond = 1'000'000;

/// Messages under way: each has a time of its own, those between the same two ends keep their order.
class Network {
 public:
  Network(VirtualClock& clock, Random random) : clock_(clock), random_(random) {}

  void send(const std::string& from, const std::string& to, std::function<void()> deliver) {
    int64_t& last = last_[from + ">" + to];
    last = std::max(last + 1, clock_.now + delay(5));
    post(last, std::move(deliver));
  }
  void after(int64_t milliseconds, std::function<void()> call) {
    post(clock_.now + milliseconds * kMillisecond, std::move(call));
  }
  /// A random time of up to so many milliseconds.
  int64_t delay(uint64_t milliseconds) {
    return static_cast<int64_t>(random_.below(milliseconds * kMillisecond));
  }
  bool deliver_next() {
    if (events_.empty()) return false;
    const auto event = events_.begin();
    clock_.now = std::max(clock_.now, event->first.first);
    const std::function<void()> call = std::move(event->second);
    events_.erase(event);
    call();
    return true;
  }

 private:
  void post(int64_t time, std::function<void()> call) {
    events_.emplace(std::pair(time, order_++), std::move(call));
  }

  VirtualClock& clock_;
  Random random_;
  int64_t order_ = 0;
  std::map<std::string, int64_t> last_;
  std::map<std::pair<int64_t, int64_t>, std::function<void()>> events_;
};

/// Credits with a planted bug.
class SimulatedCredits final : public CreditSource {
 public:
  explicit SimulatedCredits(const SimulatedWorld& world)
      : credits_(std::vector<uint64_t>(static_cast<size_t>(world.nodes),
                                       world.canary == Canary::kByteLimitIsIgnored
                                           ? 1'000'000
                                           : world.bytes_max)) {}
  bool try_grant(int node, const WorkUnit& unit, int64_t open_step) override {
    return unit.id.epoch < 0 || credits_.try_grant(node, unit, open_step);
  }
  void release(MicroBatchId id) override { credits_.release(id); }
  void node_lost(int node) override { credits_.node_lost(node); }

 private:
  Credits credits_;
};

class Simulation final : public RunOrders, public RunObserver {
 public:
  explicit Simulation(const SimulatedWorld& world);
  SimulatedOutcome run();

  // --- RunObserver
  void on_step(const StepReport& report) override { check_step(report); }
  void on_evaluation(const EvaluationReport& report) override;
  void on_event(const std::string& text) override {
    if (text.starts_with("epoch ")) ++epoch_ends_[text];
    // What is trained again ends again.
    if (text.starts_with("no trainer was left")) epoch_ends_.clear();
    if (text.find("its parameters differ") != std::string::npos) ++outcome_.refused;
  }

  // --- RunOrders
  void open_step(const PlannedStep& step) override {
    to_mailbox("supervisor", [this, step] { mailbox_.open_step(step), pump_mailbox(); });
  }
  void reduce(const Trainers& members, int64_t step, int64_t membership) override {
    for (int t : members) to_trainer("supervisor", t, [=, this](Trainer& me) { reduce(me, step, membership); });
  }
  void commit(int64_t step) override {
    to_mailbox("supervisor", [this, step] { commit_in_mailbox(step); });
  }
  void apply(const Trainers& members, int64_t step, bool, int64_t round) override {
    for (int t : members) to_trainer("supervisor", t, [=, this](Trainer& me) { apply(me, step, round); });
  }
  void evaluate(const Trainers& members, int64_t step, int64_t round) override;
  void snapshot(int trainer, int64_t step) override {
    to_trainer("supervisor", trainer, [=, this](Trainer& me) { take_snapshot(me, step); });
  }
  void regroup(const Trainers& members, int64_t membership) override;
  void restore(const Trainers& trainers, int64_t step, const std::string& path,
               int64_t round) override {
    for (int t : trainers) {
      to_trainer("supervisor", t, [=, this](Trainer& me) { restore(me, step, path, round); });
    }
  }
  void target_lost(int target) override {
    to_sampler("supervisor", [this, target] { lose_target(target); });
  }
  void target_ready(int target) override {
    to_sampler("supervisor", [this, target] { lost_targets_.erase(target), target_idle(target); });
  }
  void node_lost(int node) override {
    to_sampler("supervisor", [this, node] { lose_node(node); });
  }
  void rewind(int64_t step) override {
    to_sampler("supervisor", [this, step] { rewind_sampler(step); });
  }
  void write_checkpoint(int64_t step, const RunProgress& progress, bool prove) override;
  void mark_best(int64_t) override {}
  void finish(const Status& status) override { outcome_.end = status; }

 private:
  struct Trainer {
    int number = 0;
    int64_t life = 0;  // grows when it is started again
    bool alive = true;
    bool member = true;  // as far as it knows
    int64_t membership = 0;
    Sums sums;
    Parameters parameters;
    int64_t busy_until = 0;
    std::optional<Sums> reduced;
  };
  struct Target {
    int64_t life = 0;
    bool alive = true;
  };
  struct Group {
    std::vector<int> members;
    std::map<int, Sums> sums;  // of those who have come to reduce
  };

  int node_of(int worker) const { return worker % world_.nodes; }
  static std::string name(int trainer) { return "trainer" + std::to_string(trainer); }
  void violate(const std::string& what) {
    if (outcome_.violations.size() < 20) outcome_.violations.push_back(what);
  }

  // --- the wires
  void to_supervisor(const std::string& from, std::function<void()> deliver) {
    network_.send(from, "supervisor", [this, deliver = std::move(deliver)] {
      if (!supervisor_->finished()) deliver();
    });
  }
  void to_mailbox(const std::string& from, std::function<void()> deliver) {
    network_.send(from, "mailbox", std::move(deliver));
  }
  void to_sampler(const std::string& from, std::function<void()> deliver) {
    network_.send(from, "sampler", std::move(deliver));
  }
  /// Reaches the trainer if it still lives the same life; it works on one thing at a time.
  void to_trainer(const std::string& from, int number, std::function<void(Trainer&)> deliver) {
    const int64_t life = trainers_[static_cast<size_t>(number)].life;
    network_.send(from, name(number), [this, number, life, deliver = std::move(deliver)] {
      Trainer& trainer = trainers_[static_cast<size_t>(number)];
      if (trainer.alive && trainer.life == life) deliver(trainer);
    });
  }
  /// After a time of work, unless it dies before. Things end in the order in which they began.
  void work(Trainer& trainer, uint64_t milliseconds, std::function<void(Trainer&)> done) {
    trainer.busy_until = std::max(trainer.busy_until, clock_.now) + 1 + network_.delay(milliseconds);
    const int64_t wait = (trainer.busy_until - clock_.now) / kMillisecond + 1;
    network_.after(wait, [this, number = trainer.number, life = trainer.life, done = std::move(done)] {
      Trainer& me = trainers_[static_cast<size_t>(number)];
      if (me.alive && me.life == life) done(me);
    });
  }

  // --- sampler and targets
  std::optional<WorkUnit> next_unit();
  void target_idle(int target) {
    if (lost_targets_.count(target) == 0) idle_targets_.insert(target);
    pump_sampler();
  }
  void pump_sampler();
  void produced(int target, const Production& production);
  void lose_target(int target);
  void lose_node(int node);
  void rewind_sampler(int64_t step);
  void free_step(const PlannedStep& range);
  void produce_again(const std::vector<MicroBatchId>& ids);
  void report_exhausted();

  // --- mailbox
  bool is_member(int trainer) const {
    const std::vector<int>& members = mailbox_.members();
    return std::find(members.begin(), members.end(), trainer) != members.end();
  }
  void wait_in_line(int trainer) {
    if (is_member(trainer)) idle_trainers_.insert(trainer);
  }
  void pump_mailbox();
  void computed(int trainer, MicroBatchId id, int64_t lease);
  void unreadable(int trainer, MicroBatchId id, int64_t lease);
  void commit_in_mailbox(int64_t step);
  void regroup_mailbox(const Trainers& members, int64_t membership);
  void send_work(int trainer, MicroBatchId id, bool leased, int64_t membership) {
    to_supervisor("mailbox", [=, this] {
      supervisor_->trainer_work({trainer, id, leased, 1, 1, 0.001, mailbox_.steals(), membership});
    });
  }

  // --- trainers
  void begin_anew(Trainer& me, int64_t membership) {
    if (membership <= me.membership) return;
    me.membership = membership;
    if (world_.canary != Canary::kPartialSumsAreKept) me.sums.clear();
  }
  void train(Trainer& me, const Work& work, int64_t membership);
  void reduce(Trainer& me, int64_t step, int64_t membership);
  void apply(Trainer& me, int64_t step, int64_t round);
  void take_snapshot(Trainer& me, int64_t step);
  void restore(Trainer& me, int64_t step, const std::string& path, int64_t round);
  void idle(const Trainer& me) {
    to_mailbox(name(me.number), [this, number = me.number] { wait_in_line(number), pump_mailbox(); });
  }

  // --- faults
  void disturb();
  /// False if it was dead.
  bool kill(WorkerKind kind, int number);
  void kill_and_tell(WorkerKind kind, int number);
  void bring_back(WorkerKind kind, int number);
  void kill_node(int node);

  // --- checkers
  void check_step(const StepReport& report);
  void check_store();
  Sums planned(int64_t step) const;

  SimulatedWorld world_;
  const RunSetup& setup_;
  Random random_;
  VirtualClock clock_;
  Network network_;
  SimulatedCredits credits_;
  int64_t held_out_ = 0, held_out_left_ = 0, next_held_out_ = 0, next_step_ = 0, in_step_ = 0;
  int64_t next_epoch_ = 0;
  SamplerPolicy sampler_;
  MailboxPolicy mailbox_;
  std::unique_ptr<RunSupervisor> supervisor_;
  std::vector<Target> targets_;
  std::vector<Trainer> trainers_;
  std::set<int> idle_targets_, lost_targets_, idle_trainers_;
  int64_t rewinds_ = 0, mailbox_rewinds_ = 0;
  std::map<int64_t, Group> groups_;
  std::map<MicroBatchId, int> store_;  // features and their node
  std::map<std::string, Parameters> disk_;
  std::optional<Parameters> snapshot_;
  std::map<std::string, int> epoch_ends_;
  std::map<int64_t, int64_t> measured_;  // held-out micro-batches, per round
  int64_t evaluation_step_ = -1, evaluation_round_ = -1;
  SimulatedOutcome outcome_;
};

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
  for (const auto& [text, times] : epoch_ends_) {
    if (times != 1) violate(fmt::format("\"{}\" was said {} times", text, times));
  }
  if (outcome_.end && outcome_.end->ok() &&
      static_cast<int64_t>(epoch_ends_.size()) != setup_.steps.epochs()) {
    violate(fmt::format("{} epochs have ended, not {}", epoch_ends_.size(), setup_.steps.epochs()));
  }
  return outcome_;
}

// --- sampler and targets -------------------------------------------------------------------------

std::optional<WorkUnit> Simulation::next_unit() {
  if (next_held_out_ < held_out_) return WorkUnit{{-1, next_held_out_++}, next_step_, 1, 1};
  if (next_step_ == setup_.steps.steps()) return std::nullopt;
  const PlannedStep step = setup_.steps.at(next_step_);
  const WorkUnit unit{{step.epoch, step.first + in_step_}, next_step_, 1,
                      static_cast<uint64_t>(step.count)};
  if (++in_step_ == step.count) {
    in_step_ = 0;
    ++next_step_;
  }
  return unit;
}

void Simulation::pump_sampler() {
  for (int target : std::set<int>(idle_targets_)) {
    const auto production = sampler_.next(target, node_of(target), 0);
    if (!production) continue;
    idle_targets_.erase(target);
    to_supervisor("sampler", [=, this] {
      supervisor_->target_work(target, production->unit.id, true, 0, 0);
    });
    const int64_t life = targets_[static_cast<size_t>(target)].life;
    network_.after(1 + network_.delay(40) / kMillisecond, [=, this] {
      Target& me = targets_[static_cast<size_t>(target)];
      const bool late = !me.alive || me.life != life;
      if (late && random_.below(2)) return;  // Else a word of the dead.
      outcome_.late_words += late ? 1 : 0;
      to_sampler("target" + std::to_string(target) + "." + std::to_string(life),
                 [=, this] { produced(target, *production); });
    });
  }
  report_exhausted();
}

void Simulation::produced(int target, const Production& production) {
  const MicroBatchId id = production.unit.id;
  if (!sampler_.produced(id, target, production.lease)) return target_idle(target);
  to_supervisor("sampler", [=, this] { supervisor_->target_work(target, id, false, 1, 0.001); });
  if (id.epoch < 0) {
    sampler_.freed(id);
    if (--held_out_left_ == 0) to_supervisor("sampler", [this] { supervisor_->held_out_ready(); });
  } else {
    store_[id] = node_of(target);
    Ticket ticket;
    ticket.id = id;
    ticket.step = production.unit.step;
    ticket.node = ticket.home = node_of(target);
    to_mailbox("sampler", [this, ticket] {
      if (mailbox_.put(ticket) == MailboxPolicy::Put::kDuplicate) violate("a ticket comes twice");
      pump_mailbox();
    });
  }
  target_idle(target);
}

void Simulation::lose_target(int target) {
  lost_targets_.insert(target);
  idle_targets_.erase(target);
  if (world_.canary == Canary::kTargetLeaseIsForgotten) return;
  const auto count = static_cast<int64_t>(sampler_.target_lost(target));
  to_supervisor("sampler", [=, this] { supervisor_->queued_again(WorkerKind::kTarget, count); });
  pump_sampler();
}

void Simulation::lose_node(int node) {
  sampler_.leases_of_node_lost(node);
  std::erase_if(store_, [node](const auto& entry) { return entry.second == node; });
  to_mailbox("sampler", [this, node] { produce_again(mailbox_.node_lost(node)); });
  pump_sampler();
}

void Simulation::produce_again(const std::vector<MicroBatchId>& ids) {
  if (ids.empty()) return;
  to_sampler("mailbox", [this, ids, rewinds = mailbox_rewinds_] {
    if (rewinds != rewinds_) return;
    for (MicroBatchId id : ids) sampler_.produce_again(id);
    pump_sampler();
  });
}

void Simulation::rewind_sampler(int64_t step) {
  if (held_out_left_ > 0) held_out_left_ = held_out_;
  next_held_out_ = held_out_left_ > 0 ? 0 : held_out_;
  next_step_ = step;
  in_step_ = 0;
  next_epoch_ = setup_.steps.begin(step).epoch;
  sampler_.restart();
  store_.clear();
  to_mailbox("sampler", [this, step, rewinds = ++rewinds_] {
    mailbox_.restart();
    mailbox_rewinds_ = rewinds;
    to_supervisor("mailbox", [this, step] { supervisor_->rewound(step); });
  });
  sampler_.set_open_step(step);
  pump_sampler();
}

void Simulation::free_step(const PlannedStep& range) {
  for (int64_t i = range.first; i < range.first + range.count; ++i) {
    sampler_.freed({range.epoch, i});
    store_.erase({range.epoch, i});
  }
  sampler_.set_open_step(range.step + 1);
  pump_sampler();
}

void Simulation::report_exhausted() {
  while (next_epoch_ < setup_.steps.epochs() && sampler_.epoch_exhausted(next_epoch_)) {
    to_supervisor("sampler",
                  [this, epoch = next_epoch_] { supervisor_->epoch_exhausted(epoch); });
    ++next_epoch_;
  }
}

// --- mailbox -------------------------------------------------------------------------------------

void Simulation::pump_mailbox() {
  for (int trainer : std::set<int>(idle_trainers_)) {
    const auto work = mailbox_.take(trainer, node_of(trainer), 0);
    if (!work) continue;
    idle_trainers_.erase(trainer);
    const int64_t membership = mailbox_.membership();
    send_work(trainer, work->ticket.id, true, membership);
    to_trainer("mailbox", trainer, [=, this](Trainer& me) { train(me, *work, membership); });
  }
}

void Simulation::computed(int trainer, MicroBatchId id, int64_t lease) {
  bool counts = mailbox_.computed(id, trainer, lease);
  if (!counts && world_.canary == Canary::kStaleLeaseCounts && mailbox_.open() &&
      mailbox_.open()->contains(id)) {
    // As if no lease had a fence: whoever computed it settles the lease of its new owner.
    for (int64_t other = lease + 1; other < lease + 40 && !counts; ++other) {
      for (int owner : mailbox_.members()) counts = counts || mailbox_.computed(id, owner, other);
    }
  }
  send_work(trainer, id, false, counts ? mailbox_.membership() : -1);
  if (!counts || !mailbox_.step_computed()) return;
  const int64_t step = mailbox_.open()->step, membership = mailbox_.membership();
  if (world_.canary == Canary::kFeaturesGoBeforeTheCommit) {
    to_sampler("mailbox", [this, range = *mailbox_.open()] { free_step(range); });
  }
  to_supervisor("mailbox", [=, this] { supervisor_->step_computed(step, membership); });
}

void Simulation::unreadable(int trainer, MicroBatchId id, int64_t lease) {
  if (!mailbox_.unreadable(id, trainer, lease)) return;
  if (world_.nodes == 1) violate("features that are needed are not in the only store");
  send_work(trainer, id, false, mailbox_.membership());
  produce_again({id});
}

void Simulation::commit_in_mailbox(int64_t step) {
  if (!mailbox_.open() || mailbox_.open()->step != step || !mailbox_.step_computed()) {
    return violate("a step is committed that is not computed");
  }
  const PlannedStep range = *mailbox_.open();
  mailbox_.commit_step();
  to_sampler("mailbox", [this, range] { free_step(range); });
}

void Simulation::regroup_mailbox(const Trainers& members, int64_t membership) {
  if (membership == 0) return;
  const std::vector<int> before = mailbox_.members();
  if (world_.canary == Canary::kStepGoesOnAfterALoss && members.size() < before.size()) return;
  const int64_t queued_before = mailbox_.queued_again();
  produce_again(mailbox_.change_members(members, membership));
  std::erase_if(idle_trainers_, [this](int trainer) { return !is_member(trainer); });
  for (int trainer : members) {
    if (std::find(before.begin(), before.end(), trainer) == before.end()) wait_in_line(trainer);
  }
  const int64_t again = mailbox_.queued_again() - queued_before;
  to_supervisor("mailbox", [=, this] { supervisor_->queued_again(WorkerKind::kTrainer, again); });
  pump_mailbox();
}

// --- trainers ------------------------------------------------------------------------------------

void Simulation::regroup(const Trainers& members, int64_t membership) {
  groups_[membership].members = members;
  to_mailbox("supervisor", [=, this] { regroup_mailbox(members, membership); });
  for (int t : members) {
    to_trainer("supervisor", t, [=, this](Trainer& me) {
      begin_anew(me, membership);
      me.member = true;
      to_supervisor(name(me.number), [this, t, membership] { supervisor_->regrouped(t, membership); });
    });
  }
}

void Simulation::train(Trainer& me, const Work& leased, int64_t membership) {
  if (membership < me.membership && world_.canary != Canary::kOldTicketIsComputed) return idle(me);
  begin_anew(me, membership);
  work(me, 60, [this, leased, life = me.life](Trainer& trainer) {
    const MicroBatchId id = leased.ticket.id;
    const int number = trainer.number;
    const bool readable = store_.count(id) != 0;
    if (readable) ++trainer.sums[id];
    to_mailbox(name(number), [=, this] {
      const Trainer& now = trainers_[static_cast<size_t>(number)];
      outcome_.late_words += !now.alive || now.life != life ? 1 : 0;
      readable ? computed(number, id, leased.lease) : unreadable(number, id, leased.lease);
    });
    idle(trainer);
  });
}

void Simulation::reduce(Trainer& me, int64_t step, int64_t membership) {
  if (membership != me.membership) return;
  work(me, 10, [this, step, membership](Trainer& trainer) {
    Group& group = groups_.at(membership);
    group.sums[trainer.number] = trainer.sums;
    if (group.sums.size() < group.members.size()) return;
    Sums total;
    for (const auto& [number, sums] : group.sums) {
      for (const auto& [id, times] : sums) total[id] += times;
    }
    group.sums.clear();
    for (int number : group.members) {
      Trainer& member = trainers_[static_cast<size_t>(number)];
      if (!member.alive || member.membership != membership) continue;
      // A death may break it for some and not for others.
      const bool broken = std::any_of(group.members.begin(), group.members.end(), [this](int t) {
        return !trainers_[static_cast<size_t>(t)].alive;
      });
      if (broken && random_.below(2)) {
        to_supervisor(name(number), [=, this] {
          supervisor_->reduce_failed(number, step, membership, unavailable("a member left"));
        });
        continue;
      }
      work(member, 10, [=, this](Trainer& done) {
        done.reduced = total;
        to_supervisor(name(number),
                      [=, this] { supervisor_->reduced(number, step, membership, 0); });
      });
    }
  });
}

void Simulation::apply(Trainer& me, int64_t step, int64_t round) {
  work(me, 10, [this, step, round](Trainer& trainer) {
    if (!trainer.reduced) return violate("a trainer applies what it has not reduced");
    trainer.parameters.push_back(*std::exchange(trainer.reduced, std::nullopt));
    trainer.sums.clear();
    AppliedReport report;
    report.trainer = trainer.number;
    report.round = round;
    report.checksum = checksum_of(trainer.parameters);
    report.sums.weight = report.sums.loss = 1;
    to_supervisor(name(trainer.number),
                  [this, step, report] { supervisor_->applied(step, report, {}); });
  });
}

void Simulation::evaluate(const Trainers& members, int64_t step, int64_t round) {
  if (world_.canary == Canary::kEvaluationKeepsTheDead && step == evaluation_step_) return;
  evaluation_step_ = step;
  evaluation_round_ = round;
  const auto stride = static_cast<int64_t>(members.size());
  int64_t first = 0;
  for (int t : members) {
    to_trainer("supervisor", t, [=, this](Trainer& me) {
      work(me, 100, [=, this](Trainer& trainer) {
        if (static_cast<int64_t>(trainer.parameters.size()) != step) {
          violate(fmt::format("step {} is evaluated with parameters of step {}", step,
                              trainer.parameters.size()));
        }
        WalkCounts counts;
        for (int64_t i = first; i < held_out_; i += stride) ++measured_[round];
        counts.rounds = {1};
        counts.tokens = {1};
        to_supervisor(name(t), [=, this] { supervisor_->evaluated(t, round, counts, 0.1); });
      });
    });
    ++first;
  }
}

void Simulation::on_evaluation(const EvaluationReport& report) {
  if (report.step != evaluation_step_ || measured_[evaluation_round_] != held_out_) {
    violate(fmt::format("{} of {} held-out micro-batches were measured at step {}",
                        measured_[evaluation_round_], held_out_, report.step));
  }
}

void Simulation::take_snapshot(Trainer& me, int64_t step) {
  work(me, 10, [this, step](Trainer& trainer) {
    snapshot_ = trainer.parameters;
    to_supervisor(name(trainer.number), [this, step] { supervisor_->snapshot_taken(step, 0.01); });
  });
}

void Simulation::write_checkpoint(int64_t step, const RunProgress& progress, bool) {
  network_.after(1 + network_.delay(50) / kMillisecond, [this, step, progress] {
    CheckpointReport report;
    report.step = step;
    report.directory = "step-" + std::to_string(step);
    Status status;
    if (random_.uniform() < world_.deaths && step > 0) {
      status = resource_exhausted("no space");
      report.error = status.message();
    } else {
      if (static_cast<int64_t>(snapshot_->size()) != step || progress.step != step) {
        violate(fmt::format("the checkpoint of step {} has parameters of step {}", step,
                            snapshot_->size()));
      }
      disk_[report.directory] = *snapshot_;
    }
    to_supervisor("disk", [this, report, status] { supervisor_->checkpoint_written(report, status); });
  });
}

void Simulation::restore(Trainer& me, int64_t step, const std::string& path, int64_t round) {
  work(me, 60, [this, step, path, round](Trainer& trainer) {
    const bool skip = world_.canary == Canary::kNewcomerIsNotRestored ||
                      world_.canary == Canary::kChecksumIsNotCompared;
    uint32_t checksum = checksum_of(trainer.parameters);
    if (!path.empty()) {
      checksum = checksum_of(disk_.at(path));
      if (!skip) trainer.parameters = disk_.at(path);
      trainer.sums.clear();
      trainer.reduced.reset();
      if (world_.canary != Canary::kChecksumIsNotCompared) checksum = checksum_of(trainer.parameters);
    }
    to_supervisor(name(trainer.number), [this, number = trainer.number, round, checksum] {
      supervisor_->restored(number, round, checksum, ok_status());
    });
  });
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
  if (what == 0 && world_.nodes > 1) return kill_node(static_cast<int>(random_.below(world_.nodes)));
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
    to_supervisor("watcher", [=, this] { supervisor_->worker_lost(kind, number); });
    network_.after(1 + network_.delay(1000) / kMillisecond,
                   [=, this] { bring_back(kind, number); });
  });
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
    });
    for (const auto& [kind, number] : dead) {
      network_.after(1 + network_.delay(1000) / kMillisecond,
                     [=, this, kind = kind, number = number] { bring_back(kind, number); });
    }
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

}  // namespace

SimulatedOutcome simulate_run(const SimulatedWorld& world) { return Simulation(world).run(); }

}  // namespace percheron
