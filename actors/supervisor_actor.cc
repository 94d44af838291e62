#include <fmt/format.h>

#include "actors/actor_system.h"
#include "actors/policy/lease_watch.h"
#include "base/counted.h"
#include "base/units.h"
#include "data/checkpoint.h"

namespace percheron {
namespace {

constexpr auto kTickInterval = std::chrono::milliseconds(100);

std::string samples_were(int64_t count) {
  return counted(count, "sample") + (count == 1 ? " was" : " were");
}

// Sends what the supervisor orders, and runs its shell's disk work.
class Orders final : public RunOrders {
 public:
  Orders(caf::event_based_actor* self, SupervisorWorld world, PeersPtr peers)
      : self_(self),
        world_(std::move(world)),
        peers_(std::move(peers)),
        leases_(world_.end_worker ? static_cast<double>(lease_seconds()) : 0) {}

  void open_step(const PlannedStep& step) override { self_->send(peers_->mailbox, OpenStep{step}); }
  void reduce(const Trainers& members, int64_t step, int64_t membership) override {
    tell(members, Reduce{step, membership});
  }
  void commit(int64_t step) override { self_->send(peers_->mailbox, Commit{step}); }
  void apply(const Trainers& members, int64_t step, bool checksum, int64_t round) override {
    tell(members, Apply{step, checksum, round});
    for (int trainer : members) leases_.updates(trainer, step, now());
  }
  void evaluate(const Trainers& members, int64_t step, int64_t round) override {
    const auto stride = static_cast<int64_t>(members.size());
    int64_t first = 0;
    for (int trainer : members) tell({trainer}, Evaluate{step, round, first++, stride});
  }
  void snapshot(int trainer, int64_t step) override {
    snapshot_trainer_ = trainer;
    tell({trainer}, TakeSnapshot{step});
  }
  void regroup(const Trainers& members, int64_t membership) override {
    for (int trainer : members) leases_.settled(WorkerKind::kTrainer, trainer);
    const Regroup message{membership, {members.begin(), members.end()}};
    self_->send(peers_->mailbox, message);
    tell(members, message);
  }
  void restore(const Trainers& trainers, int64_t step, const std::string& checkpoint,
               int64_t round) override {
    tell(trainers, Restore{step, checkpoint, round});
    // They are new, or were: the held-out features that they keep are to be told again.
    for (int trainer : trainers) {
      self_->send(peers_->sampler, WorkerReady{WorkerKind::kTrainer, trainer});
    }
  }
  void target_lost(int target) override {
    self_->send(peers_->sampler, WorkerLost{WorkerKind::kTarget, target});
  }
  void target_ready(int target) override {
    self_->send(peers_->sampler, WorkerReady{WorkerKind::kTarget, target});
  }
  void worker_added(WorkerKind kind, int number, int node) override {
    const WorkerAdded message{kind, number, node, {}};
    self_->send(peers_->sampler, message);
    self_->send(peers_->mailbox, message);
  }
  void worker_retired(WorkerKind kind, int number) override {
    const WorkerRetired message{kind, number};
    self_->send(peers_->sampler, message);
    self_->send(peers_->mailbox, message);
  }
  void node_lost(int node) override { self_->send(peers_->sampler, NodeLost{node}); }
  void rewind(int64_t step) override { self_->send(peers_->sampler, Rewind{step}); }

  void write_checkpoint(int64_t step, const RunProgress& progress, bool prove) override {
    RunParts& parts = world_.parts;
    if (is_elsewhere(snapshot_trainer_)) {  // In another process, with the snapshot.
      WriteCheckpoint order;
      order.step = step;
      order.prove = prove;
      encode_progress(progress, order);
      self_->send(peers_->trainers[snapshot_trainer_], order);
      written_elsewhere_ = step;
      return;
    }
    world_.disk.post([&parts, supervisor = peers_->supervisor, step, progress, prove] {
      caf::anon_send(supervisor, write_snapshot(parts, step, progress, prove));
    });
  }

  /// The step whose checkpoint `trainer` was writing when it was lost, which nobody ends now.
  std::optional<int64_t> lost_checkpoint(int trainer) {
    if (trainer != snapshot_trainer_) return std::nullopt;
    return std::exchange(written_elsewhere_, std::nullopt);
  }
  /// Late words of a checkpoint that was given up say nothing of the next one.
  void checkpoint_written(int64_t step) {
    if (written_elsewhere_ == step) written_elsewhere_.reset();
  }

  void mark_best(int64_t step) override {
    RunParts& parts = world_.parts;
    world_.disk.post([&parts, step] {
      const Status status = percheron::mark_best(*parts.files, parts.setup->output(), step);
      if (!status.ok()) log_warning("`best` is not moved: {}", status.message());
    });
  }

  void finish(const Status& status) override { pending_finish_ = status; }
  const std::optional<Status>& pending_finish() const { return pending_finish_; }
  SupervisorWorld& world() { return world_; }
  LeaseWatch& leases() { return leases_; }
  int64_t lease_seconds() const { return world_.parts.setup->config.cluster().lease_seconds(); }
  double now() const { return static_cast<double>(world_.parts.clock->monotonic_ns()) * 1e-9; }

  PoolState pool() const {
    const RunParts& parts = world_.parts;
    if (parts.granted) {
      const std::optional<FeatureCacheCounters> cache = sources().cache;
      return {parts.granted->bytes, parts.granted->bytes_max, parts.granted->peak,
              cache ? cache->memory_bytes + cache->disk_bytes : 0};
    }
    const FeatureStoreCounters counters = parts.store->counters();
    PoolState pool{counters.bytes(), parts.store->limits().bytes_max, counters.peak_bytes, 0};
    if (parts.cache) {
      const FeatureCacheCounters cache = parts.cache->counters();
      pool.cached_bytes = cache.memory_bytes + cache.disk_bytes;
    }
    return pool;
  }

  StoreState store() const {
    const RunParts& parts = world_.parts;
    StoreState state;
    if (parts.granted) {
      state.reserved_bytes = parts.granted->bytes;
      state.bytes_max = parts.granted->bytes_max;
    } else {
      const FeatureStoreCounters counters = parts.store->counters();
      state.reserved_bytes = counters.reserved_bytes;
      state.published_bytes = counters.published_bytes;
      state.lingering_bytes = counters.lingering_bytes;
      state.bytes_max = parts.store->limits().bytes_max;
    }
    const std::optional<FeatureCacheCounters> cache = sources().cache;
    if (!cache) return state;
    state.cache_memory_bytes = cache->memory_bytes;
    state.cache_disk_bytes = cache->disk_bytes;
    state.cache_hits = cache->hits;
    state.cache_misses = cache->misses;
    return state;
  }

  FeatureSources sources() const {
    const RunParts& parts = world_.parts;
    if (world_.sources) return world_.sources();
    FeatureSources sources;
    if (parts.offline) sources.files = parts.offline->counters();
    if (parts.cache) sources.cache = parts.cache->counters();
    return sources;
  }

 private:
  template <class Message>
  void tell(const Trainers& trainers, const Message& message) {
    for (int trainer : trainers) {
      self_->send(peers_->trainers[trainer], message);
    }
  }
  bool is_elsewhere(int trainer) const {
    const std::vector<TrainerPlace>& here = world_.parts.trainers;
    return static_cast<size_t>(trainer) >= here.size() ||
           !here[static_cast<size_t>(trainer)].trainer;
  }

  caf::event_based_actor* self_;
  SupervisorWorld world_;
  PeersPtr peers_;
  int snapshot_trainer_ = 0;                  // that took the last one
  std::optional<int64_t> written_elsewhere_;  // the step that it is writing in its own process
  std::optional<Status> pending_finish_;
  LeaseWatch leases_;  // where workers have processes of their own
};

class Shell {
 public:
  Shell(caf::event_based_actor* self, SupervisorWorld world, PeersPtr peers)
      : self_(self),
        peers_(peers),
        orders_(self, std::move(world), peers),
        supervisor_(orders_.world().settings, orders_, orders_.world().observer,
                    *orders_.world().parts.clock) {}

  void begin() {
    const auto watch = [this](const caf::actor& actor) { self_->monitor(actor); };
    watch(peers_->sampler);
    watch(peers_->mailbox);
    for (const caf::actor& target : peers_->targets.all()) watch(target);
    for (const caf::actor& trainer : peers_->trainers.all()) watch(trainer);
    const Begin begin{orders_.world().parts.progress.step};
    self_->send(peers_->sampler, begin);
    for (const caf::actor& target : peers_->targets.all()) self_->send(target, begin);
    for (const caf::actor& trainer : peers_->trainers.all()) self_->send(trainer, begin);
    supervisor_.start();
    tick_later();
  }

  void tick() {
    supervisor_.tick(orders_.world().stop_signals.load());
    activity().tick(orders_.store());
    end_overdue();
    if (!supervisor_.finished()) tick_later();
  }

  void target_work(const TargetWork& message) {
    if (message.leased) {
      leases().leased(WorkerKind::kTarget, message.target, message.id, orders_.now());
    } else {
      leases().settled(WorkerKind::kTarget, message.target, message.id, orders_.now());
    }
    tell_quarantined();
    supervisor_.target_work(message.target, message.id, message.leased, message.tokens,
                            message.seconds);
  }

  void trainer_work(const TrainerWork& message) {
    if (!message.leased) {
      leases().settled(WorkerKind::kTrainer, message.trainer, message.id, orders_.now());
    } else if (supervisor_.counts(message.membership)) {  // Else it was taken away meanwhile.
      watch_lease(message);
    }
    supervisor_.trainer_work({message.trainer, message.id, message.leased, message.tokens,
                              message.samples, message.seconds, message.steals,
                              message.membership});
  }

  void watch_lease(const TrainerWork& message) {
    if (message.ahead) return leases().leased_ahead(message.trainer, message.id, orders_.now());
    leases().leased(WorkerKind::kTrainer, message.trainer, message.id, orders_.now());
  }

  // A lease that was taken from it meanwhile is settled by no word of its own.
  void reduced(const Reduced& message) {
    leases().settled(WorkerKind::kTrainer, message.trainer);
    supervisor_.reduced(message.trainer, message.step, message.membership, message.seconds);
  }

  void rewound(int64_t step) {
    leases().clear();
    supervisor_.rewound(step);
  }

  void applied(const Applied& message) {
    AppliedReport report;
    report.trainer = message.trainer;
    report.sums = decode_sums(message.sums);
    report.applied = {message.gradient_norm, message.rate_factor, message.skipped};
    if (message.has_checksum) report.checksum = message.checksum;
    report.seconds = message.seconds;
    report.round = message.round;
    leases().updated(message.trainer);
    supervisor_.applied(message.step, report, orders_.pool());
  }

  void evaluated(const Evaluated& message) {
    WalkCounts counts;
    counts.rounds = message.rounds;
    counts.tokens = message.tokens;
    supervisor_.evaluated(message.trainer, message.round, counts, message.seconds);
  }

  void written(const CheckpointWritten& message) {
    orders_.checkpoint_written(message.step);
    CheckpointReport report;
    report.step = message.step;
    report.directory = message.path;
    report.bytes = message.bytes;
    report.seconds = message.seconds;
    report.error = message.outcome.message;
    supervisor_.checkpoint_written(report, message.outcome.status());
  }

  void set_aside(const SetAside& message) {
    const SampleSet set = message.held_out ? SampleSet::kHeldOut : SampleSet::kTraining;
    const Status status = orders_.world().parts.quarantine->add(
        set, static_cast<uint64_t>(message.sample), message.reason);
    tell_quarantined();
    if (!status.ok()) supervisor_.failed("a target", status);
  }

  // Each may be told twice; only the first counts.
  void worker_lost(const WorkerLost& message) {
    if (supervisor_.there(message.kind, message.number)) {
      activity().lost(message.kind, message.number);
    }
    leases().lost(message.kind, message.number);
    supervisor_.worker_lost(message.kind, message.number);
    if (message.kind == WorkerKind::kTrainer) end_lost_checkpoint(message.number);
  }

  // A trainer of another process that was lost while it wrote a checkpoint: nobody else ends it.
  void end_lost_checkpoint(int trainer) {
    const std::optional<int64_t> step = orders_.lost_checkpoint(trainer);
    if (!step) return;
    CheckpointReport report;
    report.step = *step;
    report.error = "the trainer that wrote it is gone";
    supervisor_.checkpoint_written(report, unavailable(report.error));
  }

  void worker_ready(const WorkerReady& message) {
    if (supervisor_.away(message.kind, message.number)) {
      activity().restarted(message.kind, message.number);
    }
    supervisor_.worker_ready(message.kind, message.number);
  }

  void worker_added(const WorkerAdded& message) {
    activity().added(message.kind, message.device);
    self_->monitor(message.kind == WorkerKind::kTarget ? peers_->targets[message.number]
                                                       : peers_->trainers[message.number]);
    supervisor_.worker_added(message.kind, message.number, message.node, message.device);
  }

  void worker_retired(const WorkerRetired& message) {
    // A target is told to be lost when it is.
    if (message.kind == WorkerKind::kTrainer && supervisor_.there(message.kind, message.number)) {
      activity().lost(message.kind, message.number);
    }
    supervisor_.worker_retired(message.kind, message.number);
  }

  void queued_again(const QueuedAgain& message) {
    activity().leases_expired(message.kind, message.micro_batches);
    supervisor_.queued_again(message.kind, message.micro_batches);
  }

  void tell_quarantined() {
    activity().quarantined(orders_.world().parts.quarantine->count());
    for (const std::string& line : orders_.world().parts.quarantine->take_news()) {
      orders_.world().observer.on_event(line);
    }
  }

  void tell_sources(RunSummary& summary) {
    const FeatureSources sources = orders_.sources();
    if (sources.cache) tell_cache(*sources.cache, summary);
    if (!sources.files) return;
    const OfflineCounters& counts = *sources.files;
    const std::pair<const char*, int64_t> counters[] = {
        {"samples_from_files_since_start", counts.read},
        {"samples_not_in_files_since_start", counts.absent},
        {"samples_too_short_in_files_since_start", counts.too_short},
        {"samples_of_other_tokens_in_files_since_start", counts.other_tokens},
        {"samples_unusable_in_files_since_start", counts.unusable}};
    for (const auto& [name, count] : counters) summary.counters.emplace_back(name, count);
    const int64_t others = counts.absent + counts.too_short + counts.other_tokens + counts.unusable;
    orders_.world().observer.on_event(
        fmt::format("features: {} taken from files, {} were not found there or could not be used",
                    samples_were(counts.read), format_count(static_cast<uint64_t>(others))));
  }

  void tell_cache(const FeatureCacheCounters& counts, RunSummary& summary) {
    summary.counters.emplace_back("samples_from_cache_since_start", counts.hits);
    orders_.world().observer.on_event(
        fmt::format("features: {} taken from the cache", samples_were(counts.hits)));
  }

  // Ends the run once everything that the last message caused is done.
  void settle() {
    activity().phase(supervisor_.phase());
    if (told_end_ || !orders_.pending_finish()) return;
    told_end_ = true;
    RunSummary summary = supervisor_.summary();
    summary.counters.emplace_back("samples_quarantined_since_start",
                                  orders_.world().parts.quarantine->count());
    if (const auto& compared = orders_.world().parts.weights_comparison) {
      summary.counters.emplace_back("target_weights_compared_tokens", compared->tokens);
      summary.counters.emplace_back("target_weights_same_top1", compared->same_top1);
    }
    tell_sources(summary);
    orders_.world().on_finish(*orders_.pending_finish(), summary);
  }

  RunSupervisor& supervisor() { return supervisor_; }

 private:
  LeaseWatch& leases() { return orders_.leases(); }

  // Processes that live while their device does not: what follows is that of a death.
  void end_overdue() {
    if (supervisor_.evaluating()) leases().excuse(orders_.now());
    for (const LeaseWatch::Overdue& overdue : leases().take_overdue(orders_.now())) {
      const std::string work =
          overdue.step ? fmt::format("the update of step {}", *overdue.step)
                       : fmt::format("micro-batch ({}, {})", overdue.id.epoch, overdue.id.index);
      const std::string why = fmt::format("has been at {} for {} s (cluster.lease_seconds)", work,
                                          orders_.lease_seconds());
      orders_.world().observer.on_event(fmt::format(
          "{} {} {}: its process is ended", worker_kind_name(overdue.kind), overdue.number, why));
      orders_.world().end_worker(overdue.kind, overdue.number, why);
    }
  }

  RunActivity& activity() { return *orders_.world().parts.activity; }
  void tick_later() { self_->delayed_send(self_, kTickInterval, Tick{}); }

  caf::event_based_actor* self_;
  PeersPtr peers_;
  Orders orders_;
  RunSupervisor supervisor_;
  bool told_end_ = false;
};

caf::message_handler run_handlers(const std::shared_ptr<Shell>& shell) {
  // After each message settle(): the end is told when its cause is dealt with.
  RunSupervisor* s = &shell->supervisor();
  return {
      [shell](const Begin&) { shell->begin(), shell->settle(); },
      [shell](const Tick&) { shell->tick(), shell->settle(); },
      [shell](const TargetWork& m) { shell->target_work(m), shell->settle(); },
      [shell](const SetAside& m) { shell->set_aside(m), shell->settle(); },
      [shell](const TrainerWork& m) { shell->trainer_work(m), shell->settle(); },
      [shell, s](const EpochExhausted& m) {
        if (m.epoch == kHeldOutEpoch) {
          s->held_out_ready();
        } else {
          s->epoch_exhausted(m.epoch);
        }
        shell->settle();
      },
      [shell, s](const StepComputed& m) {
        s->step_computed(m.step, m.membership), shell->settle();
      },
      [shell](const Reduced& m) { shell->reduced(m), shell->settle(); },
      [shell](const Applied& m) { shell->applied(m), shell->settle(); },
      [shell](const Evaluated& m) { shell->evaluated(m), shell->settle(); },
      [shell, s](const SnapshotTaken& m) { s->snapshot_taken(m.step, m.seconds), shell->settle(); },
      [shell](const CheckpointWritten& m) { shell->written(m), shell->settle(); },
      [shell, s](const Failed& m) {
        s->worker_failed(m.kind, m.number, m.who, m.outcome.status()), shell->settle();
      },
  };
}

// What is told about workers that come and go, and by the operator.
caf::message_handler member_handlers(const std::shared_ptr<Shell>& shell) {
  RunSupervisor* s = &shell->supervisor();
  return {
      [shell](const WorkerLost& m) { shell->worker_lost(m), shell->settle(); },
      [shell](const WorkerReady& m) { shell->worker_ready(m), shell->settle(); },
      [shell](const WorkerAdded& m) { shell->worker_added(m); },
      [shell](const WorkerRetired& m) { shell->worker_retired(m), shell->settle(); },
      [shell, s](const NodeLost& m) { s->node_lost(m.node), shell->settle(); },
      [shell](const QueuedAgain& m) { shell->queued_again(m); },
      [s](const Regrouped& m) { s->regrouped(m.trainer, m.membership); },
      [s](const ReduceFailed& m) {
        s->reduce_failed(m.trainer, m.step, m.membership, m.outcome.status());
      },
      [shell, s](const Restored& m) {
        s->restored(m.trainer, m.round, m.checksum, m.outcome.status()), shell->settle();
      },
      [shell](const Rewind& m) { shell->rewound(m.step), shell->settle(); },
      [shell, s](const Steer& m) { s->order(m.order), shell->settle(); },
  };
}

}  // namespace

caf::actor start_supervisor(caf::actor_system& system, SupervisorWorld world, PeersPtr peers) {
  return system.spawn([world, peers](caf::event_based_actor* self) -> caf::behavior {
    log_unexpected_messages(self, "the supervisor");
    const auto shell = std::make_shared<Shell>(self, world, peers);
    self->set_down_handler([shell](caf::down_msg& message) {
      shell->supervisor().failed("an actor", internal_error("it ended without being asked to: " +
                                                            caf::to_string(message.reason)));
      shell->settle();
    });
    return run_handlers(shell).or_else(member_handlers(shell));
  });
}

}  // namespace percheron
