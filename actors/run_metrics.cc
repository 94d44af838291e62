#include "actors/run_metrics.h"

#include <algorithm>
#include <array>
#include <utility>

namespace percheron {
namespace {

constexpr std::array<std::string_view, 7> kStates = {
    "loading", "held_out", "training", "evaluating", "checkpoint", "ended", "failed"};

// What a worker can wait for.
std::span<const Occupation> causes_of(WorkerKind role) {
  static constexpr Occupation kTarget[] = {Occupation::kDevice, Occupation::kRoom,
                                           Occupation::kWork};
  static constexpr Occupation kTrainer[] = {Occupation::kDevice, Occupation::kFeatures,
                                            Occupation::kStepEnd, Occupation::kEvaluation,
                                            Occupation::kCheckpoint};
  if (role == WorkerKind::kTarget) return kTarget;
  return kTrainer;
}

double number(int64_t count) { return static_cast<double>(count); }

}  // namespace

RunMetrics::RunMetrics(std::string run, BuildInfo build, std::shared_ptr<RunActivity> activity,
                       const Clock& clock)
    : run_(std::move(run)),
      build_(std::move(build)),
      activity_(std::move(activity)),
      clock_(clock) {
  counts_.status.run = run_;
}

void RunMetrics::begin(const Start& start) {
  const std::lock_guard lock(mutex_);
  counts_.start = start;
  // Selection is the same whenever the run goes on: its samples are left out once.
  counts_.too_long = start.too_long;
  counts_.unsupervised = start.unsupervised;
  counts_.began = true;
  counts_.began_at = counts_.last_step_at = counts_.last_checkpoint_at = clock_.unix_seconds();
  counts_.status.step.step = start.step;
  counts_.status.step.steps_total = start.steps_total;
  counts_.status.ended_well.reset();
  if (counts_.workers) counts_.membership_changes += counts_.workers->membership_changes;
  counts_.workers.reset();
}

void RunMetrics::on_step(const StepReport& report) {
  const std::lock_guard lock(mutex_);
  counts_.status.step = report;
  counts_.last_step_at = clock_.unix_seconds();
  ++counts_.steps;
  counts_.samples += report.samples;
  counts_.tokens += report.tokens;
  counts_.supervised += report.supervised;
}

void RunMetrics::on_evaluation(const EvaluationReport& report) {
  const std::lock_guard lock(mutex_);
  counts_.status.evaluation = report;
  counts_.evaluation_seconds.add(report.seconds);
}

void RunMetrics::on_checkpoint(const CheckpointReport& report) {
  const std::lock_guard lock(mutex_);
  counts_.checkpoint_seconds.add(report.seconds);
  if (!report.error.empty()) {
    ++counts_.checkpoint_failures;
    return;
  }
  ++counts_.checkpoints;
  counts_.last_checkpoint_at = clock_.unix_seconds();
  counts_.status.checkpoint = report;
}

void RunMetrics::on_workers(const WorkersReport& report) {
  const std::lock_guard lock(mutex_);
  counts_.workers = report;
}

void RunMetrics::on_event(const std::string&) {
  const std::lock_guard lock(mutex_);
  ++counts_.events;
}

void RunMetrics::on_end(const RunSummary&) {
  const std::lock_guard lock(mutex_);
  if (!counts_.status.ended_well) counts_.status.ended_well = true;
}

void RunMetrics::fail() {
  const std::lock_guard lock(mutex_);
  counts_.status.ended_well = false;
}

RunMetrics::Counts RunMetrics::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

RunStatus RunMetrics::status() const { return counts().status; }

MetricsPage::Labels RunMetrics::labels(MetricsPage::Labels more) const {
  more.insert(more.begin(), {"run", run_});
  return more;
}

std::string RunMetrics::state_of(const Counts& counts, const RunPhase& phase) const {
  if (counts.status.ended_well) return *counts.status.ended_well ? "ended" : "failed";
  return std::string(phase_word(phase));
}

std::string RunMetrics::state() const { return state_of(counts(), activity_->snapshot().phase); }

bool RunMetrics::ready() const {
  return activity_->snapshot().phase.step != RunPhase::Step::kLoading &&
         counts().status.ended_well.value_or(true);
}

bool RunMetrics::alive() const {
  const RunActivitySnapshot seen = activity_->snapshot();
  const bool at_work =
      seen.phase.step != RunPhase::Step::kLoading && seen.phase.step != RunPhase::Step::kOver;
  return !at_work || seen.silent_seconds <= kSilentSecondsMax;
}

void RunMetrics::collect(MetricsPage& page) const {
  const Counts counts = this->counts();
  const RunActivitySnapshot seen = activity_->snapshot();
  page.add("percheron_build_info",
           labels({{"version", build_.version}, {"commit", build_.commit}, {"cuda", build_.cuda}}),
           1);
  const std::string state = state_of(counts, seen.phase);
  for (const std::string_view name : kStates) {
    page.add("percheron_state", labels({{"state", std::string(name)}}), name == state ? 1 : 0);
  }
  for (size_t i = 0; i < kBottlenecks; ++i) {
    const auto cause = static_cast<Bottleneck>(i);
    page.add("percheron_bottleneck", labels({{"cause", std::string(bottleneck_name(cause))}}),
             cause == seen.bottleneck ? 1 : 0);
  }
  page.add("percheron_samples_rejected_total", labels({{"reason", "quarantined"}}),
           number(seen.quarantined));
  collect_progress(page, counts);
  collect_learning(page, counts);
  collect_checkpoints(page, counts);
  collect_workers(page, seen);
  collect_members(page, counts);
  collect_queues(page, seen);
  collect_devices(page, seen);
}

void RunMetrics::collect_progress(MetricsPage& page, const Counts& counts) const {
  const StepReport& step = counts.status.step;
  page.add("percheron_samples_rejected_total", labels({{"reason", "too_long"}}),
           number(counts.too_long));
  page.add("percheron_samples_rejected_total", labels({{"reason", "unsupervised"}}),
           number(counts.unsupervised));
  page.add("percheron_steps_total", labels(), number(counts.steps));
  page.add("percheron_samples_trained_total", labels(), number(counts.samples));
  page.add("percheron_tokens_trained_total", labels(), number(counts.tokens));
  page.add("percheron_supervised_tokens_trained_total", labels(), number(counts.supervised));
  page.add("percheron_events_total", labels(), number(counts.events));
  if (!counts.began) return;
  page.add("percheron_step", labels(), number(step.step));
  page.add("percheron_steps_planned", labels(), number(step.steps_total));
  page.add("percheron_last_step_timestamp_seconds", labels(), counts.last_step_at);
}

void RunMetrics::collect_learning(MetricsPage& page, const Counts& counts) const {
  const StepReport& step = counts.status.step;
  if (counts.steps > 0) {
    page.add("percheron_epoch", labels(), number(step.epoch));
    page.add("percheron_eta_seconds", labels(), step.eta_seconds);
    page.add("percheron_loss", labels(), step.loss);
    page.add("percheron_simulated_accept_length", labels(), step.simulated_acceptance_length);
    page.add("percheron_learning_rate", labels(), step.learning_rate);
    page.add("percheron_gradient_norm", labels(), step.gradient_norm);
    for (size_t i = 0; i < step.position_accuracy.size(); ++i) {
      page.add("percheron_accept_probability", labels({{"position", std::to_string(i)}}),
               step.position_accuracy[i]);
    }
  }
  const EvaluationReport& evaluation = counts.status.evaluation;
  page.add("percheron_evaluation_duration_seconds", labels(), counts.evaluation_seconds);
  if (evaluation.draft_lengths.empty()) return;
  page.add("percheron_held_out_step", labels(), number(evaluation.step));
  for (size_t i = 0; i < evaluation.draft_lengths.size(); ++i) {
    page.add("percheron_held_out_acceptance_length",
             labels({{"draft_length", std::to_string(evaluation.draft_lengths[i])}}),
             evaluation.acceptance_length_walk[i]);
  }
}

void RunMetrics::collect_checkpoints(MetricsPage& page, const Counts& counts) const {
  page.add("percheron_checkpoint_duration_seconds", labels(), counts.checkpoint_seconds);
  page.add("percheron_checkpoints_total", labels({{"result", "written"}}),
           number(counts.checkpoints));
  page.add("percheron_checkpoints_total", labels({{"result", "failed"}}),
           number(counts.checkpoint_failures));
  if (!counts.began) return;
  page.add("percheron_checkpoint_last_success_timestamp_seconds", labels(),
           counts.last_checkpoint_at);
  if (counts.checkpoints == 0) return;
  page.add("percheron_checkpoint_bytes", labels(),
           static_cast<double>(counts.status.checkpoint.bytes));
}

void RunMetrics::collect_workers(MetricsPage& page, const RunActivitySnapshot& seen) const {
  for (const WorkerKind role : {WorkerKind::kTarget, WorkerKind::kTrainer}) {
    const std::string name(worker_kind_name(role));
    const auto& workers = role == WorkerKind::kTarget ? seen.targets : seen.trainers;
    for (size_t i = 0; i < workers.size(); ++i) {
      const WorkerActivity& worker = workers[i];
      const std::string rank = rank_label(static_cast<int>(i));
      const MetricsPage::Labels who =
          labels({{"role", name}, {"rank", rank}, {"device", worker.device}});
      double busy = 0;
      for (size_t o = 0; o < kOccupations; ++o) {
        const auto occupation = static_cast<Occupation>(o);
        if (!is_waiting(occupation)) busy += worker.seconds[occupation];
      }
      for (const Occupation cause : causes_of(role)) {
        MetricsPage::Labels waits = who;
        waits.emplace_back("cause", occupation_name(cause));
        page.add("percheron_wait_seconds_total", waits, worker.seconds[cause]);
      }
      page.add("percheron_busy_seconds_total", who, busy);
      page.add("percheron_micro_batches_total", who, number(worker.micro_batches));
      page.add("percheron_worker_tokens_total", who, number(worker.tokens));
      if (role == WorkerKind::kTarget) continue;
      page.add("percheron_data_wait_seconds_total", labels({{"rank", rank}}),
               worker.seconds[Occupation::kFeatures]);
      page.add("percheron_prefetch_depth", labels({{"rank", rank}}), number(worker.ahead));
      page.add("percheron_prefetch_bytes", labels({{"rank", rank}}),
               static_cast<double>(worker.ahead_bytes));
    }
    const auto index = static_cast<size_t>(role);
    page.add("percheron_lease_expirations_total", labels({{"role", name}}),
             number(seen.lease_expirations[index]));
    page.add("percheron_actor_restarts_total", labels({{"role", name}}),
             number(seen.restarts[index]));
  }
  page.add("percheron_capture_capacity_samples_per_second", labels(),
           seen.capture_samples_per_second);
  page.add("percheron_train_capacity_samples_per_second", labels(), seen.train_samples_per_second);
  page.add("percheron_supervisor_silent_seconds", labels(), seen.silent_seconds);
  constexpr std::pair<RunPhase::Step, const char*> kParts[] = {
      {RunPhase::Step::kComputing, "compute"},
      {RunPhase::Step::kReducing, "reduce"},
      {RunPhase::Step::kUpdating, "update"},
      {RunPhase::Step::kBetween, "between"}};
  for (const auto& [step, name] : kParts) {
    page.add("percheron_step_duration_seconds", labels({{"phase", name}}),
             seen.phase_seconds[static_cast<size_t>(step)]);
  }
}

void RunMetrics::collect_members(MetricsPage& page, const Counts& counts) const {
  const int64_t changes = counts.workers ? counts.workers->membership_changes : 0;
  page.add("percheron_membership_changes_total", labels(),
           number(counts.membership_changes + changes));
  if (!counts.workers) return;  // Nobody was lost or came yet.
  page.add("percheron_workers_present", labels({{"role", "target"}}),
           static_cast<double>(counts.workers->targets.size()));
  page.add("percheron_workers_present", labels({{"role", "trainer"}}),
           static_cast<double>(counts.workers->trainers.size()));
}

void RunMetrics::collect_queues(MetricsPage& page, const RunActivitySnapshot& seen) const {
  // Every trainer has a home, also while nothing waits there.
  for (size_t i = 0; i < seen.trainers.size(); ++i) {
    const int home = static_cast<int>(i);
    const auto found = seen.mailbox.homes.find(home);
    const HomeQueue queue = found == seen.mailbox.homes.end() ? HomeQueue{} : found->second;
    const MetricsPage::Labels at = labels({{"home", rank_label(home)}});
    page.add("percheron_mailbox_depth", at, number(queue.tickets));
    page.add("percheron_mailbox_bytes", at, static_cast<double>(queue.bytes));
  }
  page.add("percheron_mailbox_later_steps", labels(),
           static_cast<double>(seen.mailbox.queued_later));
  // Every pair from the start, so that a rate is known from the first steal on.
  const int homes = std::min(static_cast<int>(seen.trainers.size()), kStealLabelsMax);
  for (int thief = 0; thief < homes; ++thief) {
    for (int victim = 0; victim < homes; ++victim) {
      if (thief == victim) continue;
      page.add("percheron_steals_total",
               labels({{"thief", std::to_string(thief)}, {"victim", std::to_string(victim)}}), 0);
    }
  }
  for (const auto& [pair, count] : seen.steals) {
    page.add("percheron_steals_total",
             labels({{"thief", rank_label(pair.first, kStealLabelsMax)},
                     {"victim", rank_label(pair.second, kStealLabelsMax)}}),
             number(count));
  }
  for (const auto& [bound, count] : seen.in_flight) {
    page.add("percheron_prefetched_micro_batches",
             labels({{"bucket", bound == 0 ? "all" : std::to_string(bound)}}), number(count));
  }
  const StoreState& store = seen.store;
  const std::pair<const char*, uint64_t> kinds[] = {{"reserved", store.reserved_bytes},
                                                    {"published", store.published_bytes},
                                                    {"lingering", store.lingering_bytes}};
  for (const auto& [kind, bytes] : kinds) {
    page.add("percheron_feature_store_bytes", labels({{"kind", kind}}), static_cast<double>(bytes));
  }
  page.add("percheron_feature_store_limit_bytes", labels(), static_cast<double>(store.bytes_max));
  page.add("percheron_feature_cache_bytes", labels({{"kind", "memory"}}),
           static_cast<double>(store.cache_memory_bytes));
  page.add("percheron_feature_cache_bytes", labels({{"kind", "disk"}}),
           static_cast<double>(store.cache_disk_bytes));
  page.add("percheron_feature_cache_samples_total", labels({{"result", "hit"}}),
           number(store.cache_hits));
  page.add("percheron_feature_cache_samples_total", labels({{"result", "miss"}}),
           number(store.cache_misses));
}

void RunMetrics::collect_devices(MetricsPage& page, const RunActivitySnapshot& seen) const {
  for (const auto& [device, health] : seen.devices) {
    page.add("percheron_gpu_power_watts", labels({{"device", device}}), health.power_watts);
    page.add("percheron_gpu_utilization_ratio", labels({{"device", device}}), health.utilization);
    page.add("percheron_gpu_memory_bytes", labels({{"device", device}, {"kind", "used"}}),
             static_cast<double>(health.memory_used_bytes));
    page.add("percheron_gpu_memory_bytes", labels({{"device", device}, {"kind", "total"}}),
             static_cast<double>(health.memory_bytes));
  }
}

}  // namespace percheron
