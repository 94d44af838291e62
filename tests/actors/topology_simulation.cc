#include "tests/actors/topology_simulation.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <utility>

#include "actors/policy/credits.h"
#include "actors/policy/idle_targets.h"
#include "actors/policy/mailbox_policy.h"
#include "actors/policy/sampler_policy.h"
#include "actors/policy/step_ledger.h"
#include "actors/policy/trainer_leases.h"
#include "actors/policy/worker_roll.h"
#include "base/random.h"

namespace percheron {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kWarmSteps = 4;  // until all paces are known and features are ahead

std::vector<int> nodes_of(const std::vector<Topology::Place>& places) {
  std::vector<int> nodes;
  for (const Topology::Place& place : places) nodes.push_back(place.node);
  return nodes;
}

std::vector<int> first_numbers(size_t count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

double rate_of(const std::vector<Topology::Place>& places) {
  double rate = 0;
  for (const Topology::Place& place : places) {
    rate += 1 / static_cast<double>(place.micro_batch_ns);
  }
  return rate;
}

/// The least time in which all together end `count` whole micro-batches.
int64_t whole_time(const std::vector<Topology::Place>& places, int64_t count) {
  int64_t low = 0, high = places.front().micro_batch_ns * count;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    int64_t done = 0;
    for (const Topology::Place& place : places) done += middle / place.micro_batch_ns;
    (done >= count ? high : low) = middle;
  }
  return high;
}

class Run {
 public:
  Run(const Topology& topology, Assignment assignment)
      : topology_(topology),
        random_(topology.seed),
        homes_(nodes_of(topology.targets), nodes_of(topology.trainers)),
        credits_(std::vector<uint64_t>(
            static_cast<size_t>(node_count()),
            static_cast<uint64_t>(topology.per_step * topology.steps_in_memory))),
        idle_targets_(nodes_of(topology.targets)),
        sampler_([this] { return next_unit(); }, credits_, 0),
        mailbox_(assignment, first_numbers(topology.trainers.size()), 0, topology.prefetch),
        ledger_(first_numbers(topology.trainers.size()), 0),
        trainers_(topology.trainers.size()),
        busy_ns_(topology.trainers.size()) {
    outcome_.trained.resize(topology.trainers.size());
  }

  TopologyOutcome run() {
    for (int target : first_numbers(topology_.targets.size())) idle_targets_.add(target);
    for (int trainer : first_numbers(topology_.trainers.size())) ask(trainer);
    mailbox_.open_step(step(0));
    pump_sampler();
    while (!events_.empty() && !outcome_.finished) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      event.call();
    }
    measure();
    return outcome_;
  }

 private:
  struct Event {
    int64_t time = 0, order = 0;
    std::function<void()> call;
    bool operator<(const Event& other) const {
      return std::pair(time, order) > std::pair(other.time, other.order);
    }
  };

  struct Given {
    Work work;
    int64_t takes = 0;
  };
  struct Trainer {
    TrainerLeases leases;
    std::map<int64_t, Given> given;  // by lease
    int64_t link_free = 0;
  };

  int node_count() const {
    int last = 0;
    for (const auto* places : {&topology_.targets, &topology_.trainers}) {
      for (const Topology::Place& place : *places) last = std::max(last, place.node);
    }
    return last + 1;
  }
  void after(int64_t time, std::function<void()> call) {
    events_.push({now_ + time, order_++, std::move(call)});
  }
  int64_t time_of(const Topology::Place& place) {
    const double off = topology_.spread * (2 * random_.uniform() - 1);
    return std::max<int64_t>(
        1, static_cast<int64_t>(static_cast<double>(place.micro_batch_ns) * (1 + off)));
  }
  PlannedStep step(int64_t number) const {
    return {number, 0, number * topology_.per_step, topology_.per_step};
  }

  // --- sampler and targets
  std::optional<WorkUnit> next_unit() {
    if (next_ == topology_.steps * topology_.per_step) return std::nullopt;
    const int64_t index = next_++;
    return WorkUnit{
        {0, index}, index / topology_.per_step, 1, static_cast<uint64_t>(topology_.per_step)};
  }
  void pump_sampler() {
    while (const auto next = idle_targets_.next(sampler_, now_)) {
      const int target = next->first;
      const Production production = next->second;
      const int64_t takes = time_of(topology_.targets[static_cast<size_t>(target)]);
      after(takes + 2 * topology_.latency_ns, [=, this] { produced(target, production); });
    }
  }
  void produced(int target, const Production& production) {
    sampler_.produced(production.unit.id, target, production.lease);
    Ticket ticket;
    ticket.id = production.unit.id;
    ticket.step = production.unit.step;
    ticket.node = topology_.targets[static_cast<size_t>(target)].node;
    ticket.home = homes_.of_target(target);
    ticket.target = target;
    ticket.bytes = 1;
    mailbox_.put(ticket);
    idle_targets_.add(target);
    pump_sampler();
    pump_mailbox();
  }

  // --- trainers
  void ask(int trainer) {
    after(topology_.latency_ns, [this, trainer] {
      mailbox_.wait(trainer, homes_.of_trainer(trainer));
      pump_mailbox();
    });
  }
  void pump_mailbox() {
    while (const auto next = mailbox_.hand_out(now_)) {
      const int trainer = next->trainer;
      const Work work = next->work;
      const Topology::Place& place = topology_.trainers[static_cast<size_t>(trainer)];
      const Given given{work, time_of(place)};
      after(topology_.latency_ns, [=, this] { fetch(trainer, given); });
    }
  }
  // A trainer's link carries one micro-batch after the other.
  void fetch(int trainer, const Given& given) {
    Trainer& me = trainers_[static_cast<size_t>(trainer)];
    const Work& work = given.work;
    me.leases.add({work.ticket.id, work.lease, 0, mailbox_.in_order()});
    me.given[work.lease] = given;
    const int node = topology_.trainers[static_cast<size_t>(trainer)].node;
    const bool here = work.ticket.node == node;
    me.link_free = std::max(now_, me.link_free) + (here ? 0 : topology_.fetch_ns);
    after((here ? now_ : me.link_free) - now_, [=, this] {
      trainers_[static_cast<size_t>(trainer)].leases.fetched(work.lease);
      compute(trainer);
    });
  }
  void compute(int trainer) {
    Trainer& me = trainers_[static_cast<size_t>(trainer)];
    const auto lease = me.leases.begin();
    if (!lease) return;
    const Given given = me.given.extract(lease->token).mapped();
    after(given.takes, [=, this] { computed(trainer, given.work, given.takes); });
  }
  void computed(int trainer, const Work& work, int64_t takes) {
    Trainer& me = trainers_[static_cast<size_t>(trainer)];
    me.leases.done();
    busy(trainer, takes);
    ++outcome_.trained[static_cast<size_t>(trainer)];
    compute(trainer);
    after(topology_.latency_ns, [=, this] {
      mailbox_.computed(work.ticket.id, trainer, work.lease, now_);
      if (!sums_.insert(work.ticket.id.index).second) whole_ = false;
      if (mailbox_.step_computed()) {
        reduce();
      } else {
        pump_mailbox();
      }
    });
  }
  void busy(int trainer, int64_t time) {
    if (measuring()) busy_ns_[static_cast<size_t>(trainer)] += time;
  }
  bool measuring() const { return mailbox_.open() && mailbox_.open()->step >= kWarmSteps; }

  // --- steps
  void reduce() {
    ledger_.computed(ledger_.step(), ledger_.membership());
    for (int trainer : ledger_.members()) busy(trainer, topology_.reduce_ns + topology_.apply_ns);
    after(2 * topology_.latency_ns + topology_.reduce_ns, [this] {
      for (int trainer : ledger_.members()) {
        ledger_.reduced(trainer, ledger_.step(), ledger_.membership());
      }
      commit();
    });
  }
  void commit() {
    ledger_.commit();
    const PlannedStep done = *mailbox_.open();
    whole_ = whole_ && static_cast<int64_t>(sums_.size()) == done.count &&
             *sums_.begin() == done.first && *sums_.rbegin() == done.first + done.count - 1;
    sums_.clear();
    mailbox_.commit_step();
    for (int64_t i = 0; i < done.count; ++i) sampler_.freed({done.epoch, done.first + i});
    sampler_.set_open_step(done.step + 1);
    idle_targets_.room_changed();
    pump_sampler();
    after(2 * topology_.latency_ns + topology_.apply_ns, [this, done] { applied(done.step); });
  }
  void applied(int64_t done) {
    for (int trainer : std::vector<int>(ledger_.members())) ledger_.applied(trainer, done);
    if (done + 1 == kWarmSteps) measured_from_ = now_;
    if (done + 1 == topology_.steps) {
      outcome_.finished = whole_;
      return;
    }
    mailbox_.open_step(step(done + 1));
    pump_mailbox();
  }

  void measure() {
    const auto seconds = static_cast<double>(now_ - measured_from_) * 1e-9;
    const auto measured_steps = static_cast<double>(topology_.steps - kWarmSteps);
    const auto per_step = static_cast<double>(topology_.per_step);
    const auto boundary = static_cast<double>(topology_.reduce_ns + topology_.apply_ns);
    const double targets_ns = per_step / rate_of(topology_.targets);
    const double rates_ns = std::max(targets_ns, per_step / rate_of(topology_.trainers) + boundary);
    const auto whole_ns = static_cast<double>(whole_time(topology_.trainers, topology_.per_step));
    const double whole_steps_ns = std::max(targets_ns, whole_ns + boundary);
    outcome_.per_second = measured_steps * per_step / seconds;
    outcome_.share_of_ideal = measured_steps * rates_ns * 1e-9 / seconds;
    outcome_.share_of_steps = measured_steps * whole_steps_ns * 1e-9 / seconds;
    for (int64_t busy : busy_ns_) {
      outcome_.busy.push_back(static_cast<double>(busy) * 1e-9 / seconds);
    }
    outcome_.steals = mailbox_.steals();
  }

  const Topology& topology_;
  Random random_;
  const Homes homes_;
  Credits credits_;
  IdleTargets idle_targets_;
  int64_t next_ = 0;
  SamplerPolicy sampler_;
  MailboxPolicy mailbox_;
  StepLedger ledger_;
  std::priority_queue<Event> events_;
  int64_t now_ = 0, order_ = 0, measured_from_ = 0;
  std::set<int64_t> sums_;
  bool whole_ = true;
  std::vector<Trainer> trainers_;
  std::vector<int64_t> busy_ns_;
  TopologyOutcome outcome_;
};

}  // namespace

TopologyOutcome simulate_topology(const Topology& topology, Assignment assignment) {
  return Run(topology, assignment).run();
}

// --- topologies ----------------------------------------------------------------------------------

Topology five_on_three() {
  Topology topology;
  topology.name = "5 targets on 3 trainers";
  topology.targets.assign(5, {0, 200 * kMillisecond});
  topology.trainers.assign(3, {0, 150 * kMillisecond});
  return topology;
}

Topology balanced_four_on_two() {
  Topology topology;
  topology.name = "balanced, 4 targets on 2 trainers";
  topology.targets.assign(4, {0, 190 * kMillisecond});
  topology.trainers.assign(2, {0, 100 * kMillisecond});
  return topology;
}

Topology one_trainer_slow() {
  Topology topology;
  topology.name = "4 trainers, one 4 times slower";
  topology.targets.assign(4, {0, 110 * kMillisecond});
  topology.trainers.assign(3, {0, 100 * kMillisecond});
  topology.trainers.push_back({0, 400 * kMillisecond});
  return topology;
}

Topology heterogeneous() {
  Topology topology;
  topology.name = "heterogeneous, 3 machines";
  topology.targets.assign(2, {0, 60 * kMillisecond});
  topology.targets.insert(topology.targets.end(), 2, {1, 120 * kMillisecond});
  topology.targets.push_back({2, 300 * kMillisecond});
  topology.trainers.assign(2, {0, 80 * kMillisecond});
  topology.trainers.insert(topology.trainers.end(), 2, {1, 130 * kMillisecond});
  topology.trainers.insert(topology.trainers.end(), 2, {2, 320 * kMillisecond});
  topology.per_step = 128;
  return topology;
}

Topology features_from_afar() {
  Topology topology;
  topology.name = "features from afar, 3 trainers";
  topology.targets.assign(4, {0, 110 * kMillisecond});
  for (int node = 1; node <= 3; ++node) topology.trainers.push_back({node, 100 * kMillisecond});
  topology.fetch_ns = 100 * kMillisecond;
  return topology;
}

Topology many_nodes(int nodes) {
  Topology topology;
  topology.name = std::to_string(nodes) + " machines";
  Random random(11);
  const auto near = [&](int64_t milliseconds) {
    return static_cast<int64_t>(static_cast<double>(milliseconds * kMillisecond) *
                                (0.8 + 0.4 * random.uniform()));
  };
  for (int node = 0; node < nodes; ++node) {
    topology.targets.push_back({node, near(360)});
    topology.trainers.push_back({node, near(node % 10 == 9 ? 800 : 400)});
  }
  topology.per_step = 24 * nodes;
  topology.steps = 12;
  topology.reduce_ns = 400 * kMillisecond;
  topology.apply_ns = 20 * kMillisecond;
  topology.latency_ns = kMillisecond;
  topology.fetch_ns = 8 * kMillisecond;
  return topology;
}

}  // namespace percheron
