#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/policy/asking_targets.h"
#include "actors/policy/credits.h"
#include "actors/policy/mailbox_policy.h"
#include "actors/policy/sampler_policy.h"
#include "actors/policy/target_flow.h"
#include "actors/policy/trainer_leases.h"
#include "actors/run_supervisor.h"
#include "base/random.h"
#include "tests/actors/simulated_disk.h"
#include "tests/actors/simulated_run.h"
#include "tests/actors/simulated_trainer.h"

namespace percheron {

class VirtualClock final : public Clock {
 public:
  int64_t monotonic_ns() const override { return now; }
  double unix_seconds() const override { return 0; }
  int64_t now = 0;
};

inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr uint64_t kSlowestMessage = 5;  // milliseconds
inline constexpr uint64_t kLongestDelay = 500;  // likewise, of one that is late

/// Messages under way: each has a time of its own, those between the same two ends keep their
/// order. Some are late; an end that is cut off is heard again, and hears, when that is over.
class Network {
 public:
  Network(VirtualClock& clock, Random random, double delays, Canary canary)
      : clock_(clock), random_(random), delays_(delays), canary_(canary) {}

  void send(const std::string& from, const std::string& to, std::function<void()> deliver) {
    int64_t& last = last_[from + ">" + to];
    int64_t time = clock_.now + (in_one_process(from, to) ? kMillisecond : delay(kSlowestMessage));
    if ((is_worker(from) || is_worker(to)) && delays_ > 0 && random_.uniform() < delays_) {
      time += delay(kLongestDelay);
      ++delayed_;
    }
    time = std::max({time, cut_until(from), cut_until(to)});
    if (canary_ != Canary::kMessagesOvertake) time = std::max(time, last + 1);
    last = time;
    at(time, std::move(deliver));
  }
  void cut(const std::string& end, int64_t until) {
    int64_t& time = cut_until_[end];
    time = std::max(time, until);
  }
  int64_t delayed() const { return delayed_; }
  void after(int64_t milliseconds, std::function<void()> call) {
    at(clock_.now + milliseconds * kMillisecond, std::move(call));
  }
  void at(int64_t time, std::function<void()> call) {
    events_.emplace(std::pair(time, order_++), std::move(call));
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
  // Supervisor, sampler and mailbox are: what one sends the other is there before what it causes
  // the third to send.
  static bool in_one_process(const std::string& from, const std::string& to) {
    const auto decides = [](const std::string& end) {
      return end == "supervisor" || end == "sampler" || end == "mailbox";
    };
    return decides(from) && decides(to);
  }
  static bool is_worker(const std::string& end) {
    return end.starts_with("trainer") || end.starts_with("target");
  }
  int64_t cut_until(const std::string& end) const {
    const auto cut = cut_until_.find(end);
    return cut == cut_until_.end() ? 0 : cut->second;
  }

  VirtualClock& clock_;
  Random random_;
  const double delays_;
  const Canary canary_;
  int64_t order_ = 0, delayed_ = 0;
  std::map<std::string, int64_t> last_, cut_until_;
  std::map<std::pair<int64_t, int64_t>, std::function<void()>> events_;
};

/// Credits with a planted bug.
class SimulatedCredits final : public CreditSource {
 public:
  explicit SimulatedCredits(const SimulatedWorld& world)
      : credits_(std::vector<uint64_t>(
            static_cast<size_t>(world.nodes),
            world.canary == Canary::kByteLimitIsIgnored ? 1'000'000 : world.bytes_max)) {}
  bool try_grant(int node, const WorkUnit& unit, int64_t open_step) override {
    return unit.id.epoch < 0 || credits_.try_grant(node, unit, open_step);
  }
  void release(MicroBatchId id) override { credits_.release(id); }
  void node_lost(int node) override { credits_.node_lost(node); }

 private:
  Credits credits_;
};

/// 0, 1, ... count - 1.
std::vector<int> numbers(size_t count);

/// What simulate_run() runs. Its sampler and mailbox do with the policies what the actors do.
class Simulation final : public RunOrders, public RunObserver {
 public:
  /// `disk` is borrowed. `life`: how often everything has crashed before.
  Simulation(const SimulatedWorld& world, SimulatedDisk& disk, uint64_t life);
  SimulatedOutcome run();

  // --- RunObserver
  void on_step(const StepReport& report) override { check_step(report); }
  void on_evaluation(const EvaluationReport& report) override;
  void on_workers(const WorkersReport& report) override;
  void on_event(const std::string& text) override {
    if (text.starts_with("epoch ")) ++epoch_ends_[text];
    if (text.find("its parameters differ") != std::string::npos) ++outcome_.refused;
  }

  // --- RunOrders
  void open_step(const PlannedStep& step) override {
    to_mailbox("supervisor", [this, step] { mailbox_.open_step(step), pump_mailbox(); });
  }
  void reduce(const Trainers& members, int64_t step, int64_t membership) override {
    for (int t : members)
      to_trainer("supervisor", t, [=, this](Trainer& me) { reduce(me, step, membership); });
  }
  void commit(int64_t step) override {
    to_mailbox("supervisor", [this, step] { commit_in_mailbox(step); });
  }
  void apply(const Trainers& members, int64_t step, bool, int64_t round) override {
    for (int t : members)
      to_trainer("supervisor", t, [=, this](Trainer& me) { apply(me, step, round); });
  }
  void evaluate(const Trainers& members, int64_t step, int64_t round) override;
  void snapshot(int trainer, int64_t step) override {
    source_ = trainer;
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
  void worker_added(WorkerKind kind, int, int node) override {
    if (kind == WorkerKind::kTarget) {
      to_sampler("supervisor", [this, node] { asking_.add_target(node); });
    }
  }
  void worker_retired(WorkerKind kind, int number) override {
    if (kind == WorkerKind::kTarget) {
      to_sampler("supervisor", [this, number] { retire_target(number); });
    }
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
  // Of a worker in the run.
  struct Place {
    bool admitted = true;  // the supervisor knows it
    bool retired = false;  // and that it is to leave
    bool ends = false;     // it has left, and its process ends
  };
  struct StepOfSums {
    int64_t step = 0;
    Sums sums;
  };
  struct Trainer {
    int number = 0;
    int64_t life = 0;  // grows when it is started again
    bool alive = true;
    bool member = true;     // as far as it knows
    bool given_up = false;  // while it still works
    Place place = {};
    int64_t membership = 0;
    TrainerLeases leases;
    std::optional<MicroBatchId> last_added;  // to these sums, where the order counts
    Sums sums;
    Parameters parameters;
    int64_t busy_until = 0;
    std::optional<Sums> reduced;
    std::optional<int64_t> last_of;         // the step whose last ones it has
    std::optional<StepOfSums> put_in = {};  // what it has begun to sum with the others
  };
  struct Target {
    int64_t life = 0;
    bool alive = true;
    Place place = {};
    TargetFlow flow = {};
    std::deque<Production> given = {};  // and not begun
    int64_t busy_until = 0;             // of what follows the passes, one after the other
  };
  struct Group {
    std::vector<int> members;
    std::map<int, Sums> sums;  // of those who have come to reduce
  };

  int node_of(int worker) const { return worker % world_.nodes; }
  std::vector<int> target_nodes() const;
  static std::string name(int trainer) { return "trainer" + std::to_string(trainer); }
  std::string target_name(int target, int64_t life) const {
    return "target" + std::to_string(target) + "." + std::to_string(life);
  }
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
    trainer.busy_until =
        std::max(trainer.busy_until, clock_.now) + 1 + network_.delay(milliseconds);
    if_alive(trainer.busy_until, trainer, std::move(done));
  }
  void if_alive(int64_t time, const Trainer& trainer, std::function<void(Trainer&)> call) {
    network_.at(time, [this, number = trainer.number, life = trainer.life, call = std::move(call)] {
      Trainer& me = trainers_[static_cast<size_t>(number)];
      if (me.alive && me.life == life) call(me);
    });
  }

  // --- sampler and targets
  std::optional<WorkUnit> next_unit();
  void target_idle(int target) {
    const bool leaves = retiring_targets_.count(target) != 0;
    if (leaves && world_.canary == Canary::kTargetLeavesWithWork) return let_go(target);
    if (!leaves && lost_targets_.count(target) == 0) {
      asking_.add(target, sampler_.target_has_leases(target));
    }
    pump_sampler();
  }
  void pump_sampler();
  void produced(int target, const Production& production);
  void settled(int target);
  /// What the target's actor does: begins a pass, and what follows it.
  void begin_pass(int target);
  void ask(int target);
  void lose_target(int target);
  void retire_target(int target);
  void let_go(int target);
  void lose_node(int node);
  void rewind_sampler(int64_t step);
  void free_step(const PlannedStep& range);
  void produce_again(const std::vector<MicroBatchId>& ids);
  void report_exhausted();

  // --- mailbox
  void wait_in_line(int trainer) { mailbox_.wait(trainer, node_of(trainer)); }
  void pump_mailbox();
  void computed(int trainer, MicroBatchId id, int64_t lease);
  void unreadable(int trainer, MicroBatchId id, int64_t lease);
  void commit_in_mailbox(int64_t step);
  void regroup_mailbox(const Trainers& members, int64_t membership);
  void send_work(int trainer, MicroBatchId id, bool leased, int64_t membership) {
    to_supervisor("mailbox", [=, this] {
      supervisor_->trainer_work(
          {trainer, id, leased, 1, 1, 0.001, mailbox_.steals(), membership});
    });
  }

  // --- trainers
  void begin_anew(Trainer& me, int64_t membership);
  /// What was put in for the open step counts no more.
  void take_back(Trainer& me) {
    outcome_.taken_back += me.put_in ? 1 : 0;
    if (world_.canary != Canary::kEarlySumsStand) me.put_in.reset();
    me.last_of.reset();
  }
  void last_handed_out(Trainer& me, int64_t step, int64_t membership);
  void put_in_later(Trainer& me);
  void train(Trainer& me, const Work& work, int64_t membership, bool in_order);
  void give_up(Trainer& me, const TrainerLease& lease);
  void go_on(Trainer& me);
  void add(Trainer& me, const TrainerLease& lease);
  void reduce(Trainer& me, int64_t step, int64_t membership);
  void apply(Trainer& me, int64_t step, int64_t round);
  void take_snapshot(Trainer& me, int64_t step);
  void write_snapshot(int trainer, int64_t life, bool elsewhere, const RunProgress& progress);
  void report_checkpoint(int64_t step, const Result<std::string>& path);
  void restore(Trainer& me, int64_t step, const std::string& path, int64_t round);
  void begin(const Trainer& me) {
    to_mailbox(name(me.number),
               [this, number = me.number] { wait_in_line(number), pump_mailbox(); });
  }

  // --- faults, in simulation_faults.cc
  void disturb();
  bool happens(double chance) { return chance > 0 && random_.uniform() < chance; }
  /// False if it was dead.
  bool kill(WorkerKind kind, int number);
  void kill_and_tell(WorkerKind kind, int number);
  /// Its state is that of one that has just begun.
  void begin_life(WorkerKind kind, int number);
  int64_t life_of(WorkerKind kind, int number) const;
  bool is_alive(WorkerKind kind, int number) const;
  /// Tells the supervisor that this life of a worker is over, and brings the worker back.
  void lose(WorkerKind kind, int number, int64_t life);
  void tell_lost(WorkerKind kind, int number);
  void bring_back(WorkerKind kind, int number);
  void bring_back_later(WorkerKind kind, int number);
  void kill_node(int node);
  void cut_off(WorkerKind kind, int number);
  void connect_again(WorkerKind kind, int number);
  /// Of both kinds; on a node, or all.
  std::vector<std::pair<WorkerKind, int>> workers(std::optional<int> node) const;
  std::pair<WorkerKind, int> any_worker();
  int any_node();
  void crash();
  Result<std::string> write_to_disk(const Parameters& parameters, const RunProgress& progress);

  // --- workers that come and go, in simulation_scale.cc
  void scale();
  void add_worker(WorkerKind kind);
  void retire_worker(WorkerKind kind);
  Place& place_of(WorkerKind kind, int number);
  /// Of all that were added and are not to leave.
  std::vector<int> placed(WorkerKind kind);

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
  AskingTargets asking_;
  std::set<int> lost_targets_, retiring_targets_;
  int64_t rewinds_ = 0, mailbox_rewinds_ = 0;
  std::map<int64_t, Group> groups_;
  std::map<MicroBatchId, int> store_;  // features and their node
  SimulatedDisk& disk_;
  bool crashed_ = false;
  std::map<int, Parameters> snapshots_;       // the last of each trainer
  int source_ = 0;                            // the trainer whose snapshot is wanted
  std::optional<int64_t> written_elsewhere_;  // the step that it writes in its own process
  std::map<std::string, int64_t> epoch_ends_;
  std::map<int64_t, int64_t> measured_;  // held-out micro-batches, per round
  int64_t evaluation_step_ = -1, evaluation_round_ = -1;
  SimulatedOutcome outcome_;
};

}  // namespace percheron
