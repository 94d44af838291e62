#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <utility>

#include "actors/actor_system.h"
#include "base/log.h"

namespace percheron {
namespace {

// Calls an observer on a thread of its own, in order, so that a slow sink holds up nobody.
class ObserverThread final : public RunObserver {
 public:
  ObserverThread(RunObserver& observer, const Clock& clock)
      : observer_(observer), thread_("observer", clock) {}

  void on_step(const StepReport& report) override {
    if (thread_.waiting() > kWaitingMax) {
      ++dropped_;
      return;
    }
    post([report](RunObserver& observer) { observer.on_step(report); });
  }
  void on_evaluation(const EvaluationReport& report) override {
    post([report](RunObserver& observer) { observer.on_evaluation(report); });
  }
  void on_checkpoint(const CheckpointReport& report) override {
    post([report](RunObserver& observer) { observer.on_checkpoint(report); });
  }
  void on_checkpoint_kept(int64_t step, const std::string& directory) override {
    post(
        [step, directory](RunObserver& observer) { observer.on_checkpoint_kept(step, directory); });
  }
  void on_state(const StateReport& report) override {
    post([report](RunObserver& observer) { observer.on_state(report); });
  }
  void on_workers(const WorkersReport& report) override {
    post([report](RunObserver& observer) { observer.on_workers(report); });
  }
  void on_event(const std::string& text) override {
    post([text](RunObserver& observer) { observer.on_event(text); });
  }
  void on_end(const RunSummary& summary) override {
    post([summary](RunObserver& observer) { observer.on_end(summary); });
  }
  void drain() { thread_.drain(); }
  /// For so long at most.
  void drain(double seconds) {
    const auto done = std::make_shared<std::promise<void>>();
    thread_.post([done] { done->set_value(); });
    (void)done->get_future().wait_for(std::chrono::duration<double>(seconds));
  }
  int64_t dropped() const { return dropped_; }

 private:
  // Step reports beyond this are counted and dropped: the observer's disk stands still.
  static constexpr size_t kWaitingMax = 2000;

  template <class Call>
  void post(Call call) {
    thread_.post([this, call = std::move(call)] { call(observer_); });
  }

  RunObserver& observer_;
  int64_t dropped_ = 0;  // by the supervisor alone
  WorkThread thread_;
};

// Hands on what steers the run.
std::function<void(const RunControl::Message&)> forward_to(const caf::actor& supervisor) {
  struct Forward {
    const caf::actor& to;
    void operator()(RunOrder order) const { caf::anon_send(to, Steer{order}); }
    void operator()(const RunControl::Lost& worker) const {
      caf::anon_send(to, WorkerLost{worker.kind, worker.number});
    }
    void operator()(const RunControl::Ready& worker) const {
      caf::anon_send(to, WorkerReady{worker.kind, worker.number});
    }
    void operator()(const RunControl::Added& worker) const {
      caf::anon_send(to, WorkerAdded{worker.kind, worker.number, worker.node, worker.device});
    }
    void operator()(const RunControl::Retired& worker) const {
      caf::anon_send(to, WorkerRetired{worker.kind, worker.number});
    }
    void operator()(const RunControl::LostNode& lost) const {
      caf::anon_send(to, NodeLost{lost.node});
    }
  };
  return [supervisor](const RunControl::Message& message) {
    std::visit(Forward{supervisor}, message);
  };
}

struct End {
  Status status;
  RunSummary summary;
};

void start_workers(caf::actor_system& system, RunParts& parts, Peers& peers, const PeersPtr& all) {
  for (size_t i = 0; i < parts.targets.size(); ++i) {
    const auto number = static_cast<int>(i);
    peers.targets.set(number, start_target(system, parts, all, number));
  }
  for (size_t i = 0; i < parts.trainers.size(); ++i) {
    const auto number = static_cast<int>(i);
    peers.trainers.set(number, start_trainer(system, parts, all, number));
  }
}

// Cuts waits short, drops jobs that have not begun, and waits for those that run. False when one
// still runs after `seconds`.
bool close_threads(RunParts& parts, WorkThread& disk, double seconds) {
  const double deadline = static_cast<double>(parts.clock->monotonic_ns()) * 1e-9 + seconds;
  const auto left = [&] {
    return std::max(0.0, deadline - static_cast<double>(parts.clock->monotonic_ns()) * 1e-9);
  };
  for (TrainerPlace& trainer : parts.trainers) {
    if (trainer.group) trainer.group->close();
    if (trainer.sums) trainer.sums->give_up("the run has ended");
    if (trainer.reducer) trainer.reducer->close();
    if (trainer.uploader) trainer.uploader->close();
  }
  for (const TargetPlace& target : parts.targets) {
    if (target.finisher) target.finisher->close();
  }
  for (const auto& worker : parts.workers) worker->close();
  disk.close();
  bool ended = disk.wait_ended(left());
  for (TrainerPlace& trainer : parts.trainers) {
    if (trainer.reducer) ended = trainer.reducer->wait_ended(left()) && ended;
    if (trainer.uploader) ended = trainer.uploader->wait_ended(left()) && ended;
  }
  for (const TargetPlace& target : parts.targets) {
    if (target.finisher) ended = target.finisher->wait_ended(left()) && ended;
  }
  for (const auto& worker : parts.workers) ended = worker->wait_ended(left()) && ended;
  return ended;
}

// Devices of different nodes are different devices.
RunLayout layout_of(const RunParts& parts) {
  const auto names = [](const std::vector<DeviceId>& devices, const auto& places) {
    std::vector<std::string> result;
    for (size_t i = 0; i < devices.size(); ++i) {
      const int node = i < places.size() ? places[i].node : 0;
      result.push_back((node > 0 ? std::to_string(node) + "/" : "") + to_string(devices[i]));
    }
    return result;
  };
  return {names(parts.setup->placement.targets, parts.targets),
          names(parts.setup->placement.trainers, parts.trainers)};
}

// How long jobs may go on after the end: a run that was told to end at once, or that stands still
// anyway, does not wait for a forward pass of minutes.
double stop_seconds(const Status& status, const RunEnvironment& environment) {
  const bool at_once =
      status.code() == StatusCode::kCancelled || status.code() == StatusCode::kUnavailable;
  return at_once ? environment.stop_seconds
                 : std::max(environment.stop_seconds, environment.stall_seconds);
}

void end_actors(caf::actor_system& system, Peers& peers) {
  for (const caf::actor* actor : {&peers.supervisor, &peers.sampler, &peers.mailbox}) {
    caf::anon_send_exit(*actor, caf::exit_reason::user_shutdown);
  }
  for (const auto* actors : {&peers.targets, &peers.trainers}) {
    for (const caf::actor& actor : actors->all()) {
      caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
    }
  }
  system.await_all_actors_done();
  peers.clear();
}

}  // namespace

ActorSystemConfig::ActorSystemConfig() {
  add_message_types<caf::id_block::percheron_run>();
  add_message_types<caf::id_block::percheron_reduce>();
  // Few small messages: sharing sleeps when there are none, where stealing polls.
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", size_t{2});
  set("scheduler.max-throughput", size_t{100});
}

size_t sum_positions(const RunSetup& setup) {
  return static_cast<size_t>(setup.drafter.kind == DrafterKind::kEagle3
                                 ? setup.loss.ttt_steps
                                 : setup.drafter.block_size - 1);
}

std::vector<double> encode_sums(const StepSums& sums, size_t positions) {
  std::vector<double> values = {sums.loss,
                                sums.weight,
                                static_cast<double>(sums.tokens),
                                static_cast<double>(sums.supervised),
                                sums.run_sum,
                                sums.run_count};
  for (const auto* list :
       {&sums.position_loss, &sums.position_weight, &sums.position_correct, &sums.position_count}) {
    for (size_t i = 0; i < positions; ++i) values.push_back(i < list->size() ? (*list)[i] : 0.0);
  }
  return values;
}

StepSums decode_sums(const std::vector<double>& values) {
  constexpr size_t kScalars = 6;
  PERCHERON_CHECK(values.size() >= kScalars && (values.size() - kScalars) % 4 == 0,
                  "encoded sums are scalars and four lists");
  StepSums sums;
  sums.loss = values[0];
  sums.weight = values[1];
  sums.tokens = static_cast<int64_t>(values[2]);
  sums.supervised = static_cast<int64_t>(values[3]);
  sums.run_sum = values[4];
  sums.run_count = values[5];
  const auto positions = static_cast<std::ptrdiff_t>((values.size() - kScalars) / 4);
  auto next = values.begin() + kScalars;
  for (auto* list :
       {&sums.position_loss, &sums.position_weight, &sums.position_correct, &sums.position_count}) {
    list->assign(next, next + positions);
    next += positions;
  }
  return sums;
}

std::vector<int> RunParts::target_nodes() const {
  std::vector<int> nodes;
  for (const TargetPlace& target : targets) nodes.push_back(target.node);
  return nodes;
}

std::vector<int> RunParts::trainer_nodes() const {
  std::vector<int> nodes;
  for (const TrainerPlace& trainer : trainers) nodes.push_back(trainer.node);
  return nodes;
}

void end_process(const Status& why) {
  log_error("{}", why.message());
  std::_Exit(1);
}

Result<RunSummary> run_actors(RunParts& parts, const RunEnvironment& environment) {
  return run_actors(parts, environment, nullptr);
}

Result<RunSummary> run_actors(RunParts& parts, const RunEnvironment& environment,
                              RemoteWorkers* remote) {
  parts.activity->begin(layout_of(parts));
  ObserverThread observer(environment.observer, *parts.clock);
  WorkThread disk("checkpoint", *parts.clock);
  std::promise<End> end;
  const auto peers = std::make_shared<Peers>();
  Result<RunSummary> outcome = internal_error("the run did not end");
  {
    ActorSystemConfig config;
    caf::actor_system system(config);
    SupervisorSettings settings{parts.setup,
                                parts.resumed_from,
                                parts.progress,
                                environment.stall_seconds,
                                environment.checksum_steps,
                                environment.worker_wait_seconds};
    SupervisorWorld world{parts,
                          observer,
                          disk,
                          environment.stop_signals,
                          settings,
                          [&end](const Status& status, const RunSummary& summary) {
                            end.set_value({status, summary});
                          },
                          {},
                          {}};
    if (remote) {
      world.sources = [remote] { return remote->sources(); };
      world.end_worker = [remote](WorkerKind kind, int number, const std::string& why) {
        remote->end_worker(kind, number, why);
      };
    }
    peers->supervisor = start_supervisor(system, std::move(world), peers);
    peers->sampler = start_sampler(system, parts, peers);
    peers->mailbox = start_mailbox(system, parts, peers);
    if (remote) {
      remote->start(system, peers);
    } else {
      start_workers(system, parts, *peers, peers);
    }
    caf::anon_send(peers->supervisor, Begin{parts.progress.step});
    if (environment.control) environment.control->attach(forward_to(peers->supervisor));
    End ended = end.get_future().get();
    if (environment.control) environment.control->detach();
    // No thread may speak to an actor once the system goes: jobs end first, waits are cut short.
    if (ended.status.ok()) disk.drain();
    if (!close_threads(parts, disk, stop_seconds(ended.status, environment))) {
      observer.on_event("a job does not end: the process is ended as it is");
      observer.drain(environment.stop_seconds);
      environment.give_up(ended.status.ok() ? unavailable("a job does not end") : ended.status);
    }
    for (TrainerPlace& trainer : parts.trainers) {
      if (trainer.reducer) trainer.reducer->stop();
      if (trainer.uploader) trainer.uploader->stop();
    }
    for (const TargetPlace& target : parts.targets) {
      if (target.finisher) target.finisher->stop();
    }
    for (const auto& worker : parts.workers) worker->stop();
    disk.stop();
    if (remote) remote->stop();
    end_actors(system, *peers);
    ended.summary.counters.emplace_back("step_reports_dropped_since_start", observer.dropped());
    observer.on_end(ended.summary);
    outcome = ended.status.ok() ? Result<RunSummary>(ended.summary) : ended.status;
  }
  observer.drain();
  return outcome;
}

}  // namespace percheron
