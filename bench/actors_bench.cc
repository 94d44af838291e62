// What the control plane costs: tickets through the bare policies, and through the real mailbox and
// supervisor actors, with workers that answer at once. A ticket is put, taken, computed and
// committed; as in a run the supervisor hears of each when its target and its trainer begin and end
// it. Arguments: numbers of machines, in place of those of kNodes.

#include <fmt/format.h>

#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <future>
#include <memory>
#include <numeric>
#include <vector>

#include "actors/actor_system.h"
#include "actors/policy/idle_targets.h"
#include "actors/policy/mailbox_policy.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file_system.h"

namespace percheron {
namespace {

constexpr int kNodes[] = {10, 100, 1000, 10000};
constexpr int64_t kPerNode = 16;       // micro-batches of a step
constexpr int64_t kTickets = 320'000;  // of a run, at least
constexpr int64_t kSteps = 5;          // of a run, at least
constexpr int kTries = 3;              // of which the fastest counts, for others use the machine
constexpr uint64_t kBytesMax = 1ULL << 40;  // there is room

int64_t now_ns() { return system_clock().monotonic_ns(); }

/// Processor time, of this thread or of all, so that what other programs take does not count.
int64_t processor_ns(clockid_t of) {
  timespec time{};
  PERCHERON_CHECK(clock_gettime(of, &time) == 0, "threads and processes have a clock");
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}
int64_t thread_ns() { return processor_ns(CLOCK_THREAD_CPUTIME_ID); }
int64_t process_ns() { return processor_ns(CLOCK_PROCESS_CPUTIME_ID); }

std::vector<int> first_numbers(int count) {
  std::vector<int> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

StepPlan plan_of(int nodes) {
  const int64_t per_step = kPerNode * nodes;
  return {per_step, {std::max(kSteps, kTickets / per_step) * per_step}, 0};
}

// --- bare policies -------------------------------------------------------------------------------

struct PolicyCost {
  double ns_per_ticket = 0;
  double visited_per_ticket = 0;
};

/// What trainers are at, in the order in which they end. Every fourth trainer takes four times as
/// long as the others, so there are two queues in order: this costs the same for any number.
class BusyTrainers {
 public:
  struct Job {
    int64_t end = 0;
    int trainer = 0;
    MicroBatchId id;
    int64_t lease = 0;
  };

  void begin(const MailboxPolicy::HandOut& next, int64_t now) {
    const bool slow = next.trainer % 4 == 3;
    jobs_[slow ? 1 : 0].push_back(
        {now + (slow ? 4000 : 1000), next.trainer, next.work.ticket.id, next.work.lease});
  }
  Job take_first_to_end() {
    const bool slow =
        jobs_[0].empty() || (!jobs_[1].empty() && jobs_[1].front().end < jobs_[0].front().end);
    std::deque<Job>& jobs = jobs_[slow ? 1 : 0];
    const Job job = jobs.front();
    jobs.pop_front();
    return job;
  }

 private:
  std::array<std::deque<Job>, 2> jobs_;
};

PolicyCost measure_policies(int nodes) {
  const StepPlan plan = plan_of(nodes);
  int64_t next = 0;
  const auto unit = [&]() -> std::optional<WorkUnit> {
    if (next == plan.micro_batches(0)) return std::nullopt;
    const int64_t index = next++;
    return WorkUnit{{0, index},
                    index / plan.micro_batches_per_step(),
                    1,
                    static_cast<uint64_t>(plan.micro_batches_per_step())};
  };
  const std::vector<int> numbers = first_numbers(nodes);
  Credits credits(std::vector<uint64_t>(static_cast<size_t>(nodes),
                                        static_cast<uint64_t>(2 * plan.micro_batches_per_step())));
  IdleTargets idle(numbers);
  SamplerPolicy sampler(unit, credits, 0);
  MailboxPolicy mailbox(Assignment::kStealing, numbers, 0);
  BusyTrainers busy;
  std::vector<std::pair<int, Production>> made;
  for (int number : numbers) {
    idle.add(number);
    mailbox.wait(number, number);
  }
  const int64_t ahead_max = 2 * plan.micro_batches_per_step();  // as the room for features does
  int64_t now = 1, ahead = 0;
  const int64_t begin = thread_ns();
  for (int64_t step = 0; step < plan.steps(); ++step) {
    mailbox.open_step(plan.at(step));
    while (!mailbox.step_computed()) {
      made.clear();
      while (ahead < ahead_max) {
        const auto produced = idle.next(sampler, now);
        if (!produced) break;
        made.push_back(*produced);
        ++ahead;
      }
      for (const auto& [target, production] : made) {
        sampler.produced(production.unit.id, target, production.lease);
        Ticket ticket;
        ticket.id = production.unit.id;
        ticket.node = ticket.home = ticket.target = target;
        mailbox.put(ticket);
        idle.add(target);
      }
      while (const auto next_work = mailbox.hand_out(now)) busy.begin(*next_work, now);
      const BusyTrainers::Job done = busy.take_first_to_end();
      now = done.end;
      mailbox.computed(done.id, done.trainer, done.lease, now);
      mailbox.take_changed_queues();
    }
    const PlannedStep done = mailbox.commit_step();
    for (int64_t i = 0; i < done.count; ++i) sampler.freed({done.epoch, done.first + i});
    ahead -= plan.micro_batches_per_step();
    sampler.set_open_step(step + 1);
    idle.room_changed();
  }
  const auto tickets = static_cast<double>(plan.micro_batches(0));
  return {static_cast<double>(thread_ns() - begin) / tickets,
          static_cast<double>(mailbox.visited()) / tickets};
}

// --- actors --------------------------------------------------------------------------------------

/// Puts the tickets of one step at once, then one for each that is computed, so that targets are as
/// fast as trainers; at most two steps ahead of what is freed.
class FakeSampler {
 public:
  FakeSampler(caf::event_based_actor* self, PeersPtr peers, const StepPlan& plan)
      : self_(self),
        peers_(std::move(peers)),
        plan_(plan),
        targets_(static_cast<int64_t>(peers_->targets.all().size())) {}

  void begin() {
    made_ = plan_.micro_batches_per_step();
    put();
  }
  void computed() {
    ++made_;
    put();
  }
  void freed(int64_t steps) {
    freed_ = steps;
    put();
  }

 private:
  void put() {
    const int64_t room = std::min(plan_.steps(), freed_ + 2) * plan_.micro_batches_per_step();
    for (; next_ < std::min(made_, room); ++next_) {
      const auto target = static_cast<int32_t>(next_ % targets_);
      Ticket ticket;
      ticket.id = {0, next_};
      ticket.step = next_ / plan_.micro_batches_per_step();
      ticket.node = ticket.home = ticket.target = target;
      self_->send(peers_->supervisor, TargetWork{target, ticket.id, true, 0, 0});
      self_->send(peers_->supervisor, TargetWork{target, ticket.id, false, 1, 0.1});
      self_->send(peers_->mailbox, PutTicket{ticket});
    }
    if (next_ < plan_.micro_batches(0) || exhausted_) return;
    exhausted_ = true;
    self_->send(peers_->supervisor, EpochExhausted{0});
  }

  caf::event_based_actor* self_;
  PeersPtr peers_;
  const StepPlan& plan_;
  const int64_t targets_;
  int64_t made_ = 0, next_ = 0, freed_ = 0;
  bool exhausted_ = false;
};

caf::behavior fake_sampler(caf::event_based_actor* self, PeersPtr peers, const StepPlan& plan) {
  const auto sampler = std::make_shared<FakeSampler>(self, std::move(peers), plan);
  return {[sampler](const Begin&) { sampler->begin(); },
          [sampler](const Freed& message) { sampler->freed(message.range.step + 1); },
          [sampler](const TargetIdle&) { sampler->computed(); }};
}

caf::behavior fake_trainer(caf::event_based_actor* self, PeersPtr peers, int32_t number) {
  return {
      [=](const Begin&) { self->send(peers->mailbox, Take{number}); },
      [=](const TakeTicket& message) {
        self->send(peers->mailbox, Computed{number, message.ticket.id, message.lease, 1, 1, 0.001});
        self->send(peers->mailbox, Take{number});
        self->send(peers->sampler, TargetIdle{number});
      },
      [=](const Regroup& message) {
        self->send(peers->supervisor, Regrouped{number, message.membership});
      },
      [=](const Reduce& message) {
        self->send(peers->supervisor, Reduced{number, message.step, message.membership, 0});
      },
      [=](const Apply& message) {
        Applied done;
        done.trainer = number;
        done.step = message.step;
        done.round = message.round;
        done.sums = encode_sums(StepSums{}, 7);
        self->send(peers->supervisor, done);
      },
      [=](const TakeSnapshot& message) {
        self->send(peers->supervisor, SnapshotTaken{message.step, 0});
      },
      [=](const WriteCheckpoint& message) {
        CheckpointWritten done;
        done.step = message.step;
        done.path = "nowhere";
        self->send(peers->supervisor, done);
      }};
}

std::shared_ptr<RunSetup> setup_of(int nodes) {
  auto setup = std::make_shared<RunSetup>();
  setup->steps = plan_of(nodes);
  setup->config.mutable_checkpoint()->set_every_steps(0);
  setup->config.mutable_output()->set_directory("nowhere");  // No checkpoint is really written.
  const std::vector<DeviceId> devices(static_cast<size_t>(nodes));
  setup->placement.targets = setup->placement.trainers = devices;
  return setup;
}

struct ActorsCost {
  double tickets_per_second = 0;  // 0 = the run failed
  double processor_ns_per_ticket = 0;
};

/// Runs until the last step is applied.
ActorsCost measure_actors(int nodes) {
  const std::shared_ptr<const RunSetup> setup = setup_of(nodes);
  RunParts parts(setup);
  parts.clock = &system_clock();
  parts.files = &system_files();
  auto store = FeatureStore::make({kBytesMax, 1});
  PERCHERON_CHECK(store.ok(), "the store has room");
  parts.store = std::move(store).value();
  parts.quarantine = std::make_unique<Quarantine>(1);
  parts.activity = std::make_shared<RunActivity>(system_clock());
  const std::vector<std::string> devices(static_cast<size_t>(nodes), "cpu:0");
  parts.activity->begin({devices, devices});
  parts.targets.resize(static_cast<size_t>(nodes));
  parts.trainers.resize(static_cast<size_t>(nodes));
  for (int node = 0; node < nodes; ++node) {
    parts.targets[static_cast<size_t>(node)].node = node;
    parts.trainers[static_cast<size_t>(node)].node = node;
  }
  RunObserver observer;
  WorkThread disk("checkpoint", system_clock());
  const std::atomic<int> no_signals{0};
  std::promise<Status> end;
  const auto peers = std::make_shared<Peers>();
  ActorSystemConfig config;
  caf::actor_system system(config);
  SupervisorSettings settings;
  settings.setup = setup;
  peers->supervisor = start_supervisor(
      system,
      SupervisorWorld{parts,
                      observer,
                      disk,
                      no_signals,
                      settings,
                      [&end](const Status& status, const RunSummary&) { end.set_value(status); },
                      {},
                      {}},
      peers);
  peers->mailbox = start_mailbox(system, parts, peers);
  for (int32_t number = 0; number < nodes; ++number) {
    peers->trainers.set(number, system.spawn([=](caf::event_based_actor* self) {
      return fake_trainer(self, peers, number);
    }));
    peers->targets.set(number, system.spawn([](caf::event_based_actor*) -> caf::behavior {
      return {[](const Begin&) {}};
    }));
  }
  peers->sampler = system.spawn(
      [&](caf::event_based_actor* self) { return fake_sampler(self, peers, setup->steps); });
  const int64_t begin = now_ns(), processor_begin = process_ns();
  caf::anon_send(peers->supervisor, Begin{0});
  const Status status = end.get_future().get();
  const double seconds = static_cast<double>(now_ns() - begin) * 1e-9;
  const auto processor = static_cast<double>(process_ns() - processor_begin);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  for (const auto* actors : {&peers->targets, &peers->trainers}) {
    for (const caf::actor& actor : actors->all()) {
      caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
    }
  }
  for (const caf::actor* actor : {&peers->supervisor, &peers->sampler, &peers->mailbox}) {
    caf::anon_send_exit(*actor, caf::exit_reason::user_shutdown);
  }
  system.await_all_actors_done();
  peers->clear();
  if (!status.ok()) return {};
  const auto tickets = static_cast<double>(setup->steps.micro_batches(0));
  return {tickets / seconds, processor / tickets};
}

int print_table(const std::vector<int>& nodes_of_rows) {
  std::printf("%6s  %22s  %18s  %20s  %26s  %16s\n", "nodes", "policies, ns a ticket",
              "visited a ticket", "actors, ns a ticket", "of processors, ns a ticket",
              "actors, tickets/s");
  for (int nodes : nodes_of_rows) {
    PolicyCost bare;
    double rate = 0, processor = 0;
    for (int i = 0; i < kTries; ++i) {
      const PolicyCost cost = measure_policies(nodes);
      if (i == 0 || cost.ns_per_ticket < bare.ns_per_ticket) bare = cost;
      const ActorsCost actors = measure_actors(nodes);
      rate = std::max(rate, actors.tickets_per_second);
      const double ns = actors.processor_ns_per_ticket;
      processor = i == 0 ? ns : std::min(processor, ns);
    }
    if (rate == 0) return 1;
    std::printf("%6d  %22.0f  %18.2f  %20.0f  %26.0f  %16.0f\n", nodes, bare.ns_per_ticket,
                bare.visited_per_ticket, 1e9 / rate, processor, rate);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace percheron

int main(int argc, char** argv) {
  std::vector<int> nodes(std::begin(percheron::kNodes), std::end(percheron::kNodes));
  if (argc > 1) nodes.clear();
  for (int i = 1; i < argc; ++i) {
    nodes.push_back(std::atoi(argv[i]));
    if (nodes.back() > 0) continue;
    std::fprintf(stderr, "\"%s\" is no number of machines: give numbers from 1 on\n", argv[i]);
    return 2;
  }
  return percheron::print_table(nodes);
}
