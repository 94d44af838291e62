#include "actors/policy/run_activity.h"

#include <algorithm>
#include <numeric>

namespace percheron {
namespace {

// Workers keep their counts when a run goes on; a device may change.
template <class Worker>
void place(std::vector<Worker>& workers, const std::vector<std::string>& devices, double now) {
  for (size_t i = 0; i < devices.size(); ++i) {
    if (i == workers.size()) workers.push_back({{}, OccupationClock(now)});
    workers[i].device = devices[i];
  }
  for (Worker& worker : workers) {
    worker.clock.end_job(0, 0, Occupation::kIdle, now);
    worker.clock.enter(Occupation::kIdle, now);
    worker.away = false;
    worker.ahead_bytes.clear();
  }
}

template <class Worker>
std::vector<WorkerActivity> activities(const std::vector<Worker>& workers, double now) {
  std::vector<WorkerActivity> result;
  for (const Worker& worker : workers) {
    result.push_back(
        {worker.device, worker.clock.occupation(), worker.clock.seconds(now), worker.micro_batches,
         worker.tokens, worker.samples, static_cast<int64_t>(worker.ahead_bytes.size()),
         std::accumulate(worker.ahead_bytes.begin(), worker.ahead_bytes.end(), uint64_t{0})});
  }
  return result;
}

// Workers that are not away.
template <class Worker>
size_t here(const std::vector<Worker>& workers) {
  return static_cast<size_t>(
      std::ranges::count_if(workers, [](const Worker& worker) { return !worker.away; }));
}

// Samples of all workers together in a second, if all compute without a pause.
double capacity(int64_t samples, double compute_seconds, size_t workers) {
  return compute_seconds > 0
             ? static_cast<double>(samples) / compute_seconds * static_cast<double>(workers)
             : 0;
}

}  // namespace

std::string_view phase_word(const RunPhase& phase) {
  switch (phase.step) {
    case RunPhase::Step::kLoading: return "loading";
    case RunPhase::Step::kHeldOut: return "held_out";
    case RunPhase::Step::kOver: return "ended";
    case RunPhase::Step::kBetween: return phase.evaluating ? "evaluating" : "checkpoint";
    default: return phase.evaluating ? "evaluating" : "training";
  }
}

void RunActivity::begin(const RunLayout& layout) {
  const std::lock_guard lock(mutex_);
  const double now = this->now();
  place(targets_, layout.target_devices, now);
  place(trainers_, layout.trainer_devices, now);
  shared_device_ = std::ranges::any_of(layout.target_devices, [&](const std::string& device) {
    return std::ranges::count(layout.trainer_devices, device) > 0;
  });
  kept_.mailbox = {};
  homes_.clear();
  kept_.in_flight.clear();
  kept_.phase = {};
  quarantined_before_ = 0;
  cache_before_ = {};
  trainers_wait_for_ = trainer_waits_for();
  phase_since_ = seen_ = now;
  window_.assign(1, totals(now));
}

void RunActivity::settle(Worker& worker, const Settled& work, Occupation reason, double now) {
  if (worker.away) return;
  worker.clock.end_job(work.seconds, work.fetch_seconds, reason, now);
  count(worker, work.tokens, work.samples);
}

void RunActivity::count(Worker& worker, int64_t tokens, int64_t samples) {
  ++worker.micro_batches;
  worker.tokens += tokens;
  worker.samples += samples;
}

// What was given to a worker that died, or before the run went back, is never settled.
void RunActivity::wait(Worker& worker, Occupation why, double now) {
  if (worker.away) return;
  worker.clock.end_job(0, 0, Occupation::kIdle, now);
  worker.clock.enter(why, now);
  worker.ahead_bytes.clear();
}

void RunActivity::begin_job(Worker& worker, double now) {
  if (worker.away) return;
  worker.clock.end_job(0, 0, Occupation::kIdle, now);
  worker.clock.begin_job(now);
}

RunActivity::Worker& RunActivity::worker(WorkerKind kind, int number) {
  return (kind == WorkerKind::kTarget ? targets_ : trainers_).at(static_cast<size_t>(number));
}

void RunActivity::target_leased(int target, std::optional<int64_t> bucket) {
  const std::lock_guard lock(mutex_);
  Worker& worker = targets_.at(static_cast<size_t>(target));
  // A second one is begun when the first is settled: time is counted once.
  if (!worker.clock.in_job()) begin_job(worker, now());
  worker.after = Occupation::kIdle;
  if (bucket) ++kept_.in_flight[*bucket];
}

void RunActivity::target_settled(int target, int64_t tokens, int64_t samples, double seconds,
                                 bool more) {
  const std::lock_guard lock(mutex_);
  Worker& worker = targets_.at(static_cast<size_t>(target));
  const double now = this->now();
  settle(worker, {tokens, samples, seconds}, Occupation::kDevice, now);
  if (worker.away || worker.clock.in_job()) return;
  if (more) {
    begin_job(worker, now);
  } else {
    worker.clock.enter(worker.after, now);
  }
}

void RunActivity::target_waits(int target, Occupation why) {
  const std::lock_guard lock(mutex_);
  Worker& worker = targets_.at(static_cast<size_t>(target));
  worker.after = why;
  if (!worker.clock.in_job()) wait(worker, why, now());
}

void RunActivity::freed(int64_t bucket) {
  const std::lock_guard lock(mutex_);
  int64_t& count = kept_.in_flight[bucket];
  count = std::max<int64_t>(0, count - 1);
}

Occupation RunActivity::trainer_waits_for() const {
  switch (kept_.phase.step) {
    case RunPhase::Step::kLoading:
    case RunPhase::Step::kOver: return Occupation::kIdle;
    case RunPhase::Step::kHeldOut: return Occupation::kEvaluation;
    case RunPhase::Step::kBetween:
      return kept_.phase.evaluating ? Occupation::kEvaluation : Occupation::kCheckpoint;
    case RunPhase::Step::kComputing:
      return kept_.mailbox.features_late ? Occupation::kFeatures : Occupation::kStepEnd;
    case RunPhase::Step::kReducing: return Occupation::kReduce;
    case RunPhase::Step::kUpdating:
      // An evaluation measures the parameters of one step, so the update waits for its end.
      return kept_.phase.evaluating ? Occupation::kEvaluation : Occupation::kUpdate;
  }
  return Occupation::kIdle;
}

void RunActivity::tell_trainers(double now) {
  const Occupation next = trainer_waits_for();
  if (next == trainers_wait_for_) return;
  trainers_wait_for_ = next;
  for (Worker& trainer : trainers_) {
    if (!trainer.away && !trainer.clock.in_job() && trainer.clock.occupation() != next) {
      trainer.clock.enter(next, now);
    }
  }
}

void RunActivity::trainer_leased_ahead(int trainer, std::optional<int> victim, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Worker& holder = trainers_.at(static_cast<size_t>(trainer));
  if (!holder.away) holder.ahead_bytes.push_back(bytes);
  if (victim) ++kept_.steals[{trainer, *victim}];
}

void RunActivity::trainer_gave_up(int trainer, bool holds_others, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Worker& worker = trainers_.at(static_cast<size_t>(trainer));
  std::deque<uint64_t>& ahead = worker.ahead_bytes;
  // If it was at that one, it is at the next now.
  const auto over = std::ranges::find(ahead, bytes);
  if (!ahead.empty()) ahead.erase(over == ahead.end() ? ahead.begin() : over);
  if (!holds_others) wait(worker, trainers_wait_for_, now());
}

void RunActivity::trainer_worked_in_vain(int trainer, int64_t tokens, int64_t samples) {
  const std::lock_guard lock(mutex_);
  Worker& worker = trainers_.at(static_cast<size_t>(trainer));
  if (!worker.away) count(worker, tokens, samples);
}

void RunActivity::trainer_leased(int trainer, std::optional<int> victim) {
  const std::lock_guard lock(mutex_);
  Worker& worker = trainers_.at(static_cast<size_t>(trainer));
  worker.ahead_bytes.clear();
  begin_job(worker, now());
  if (victim) ++kept_.steals[{trainer, *victim}];
}

void RunActivity::trainer_settled(int trainer, int64_t tokens, int64_t samples, double seconds,
                                  double fetch_seconds) {
  const std::lock_guard lock(mutex_);
  const double now = this->now();
  const Occupation reason = kept_.phase.evaluating ? Occupation::kEvaluation
                            : kept_.phase.copying  ? Occupation::kCheckpoint
                                                   : Occupation::kDevice;
  Worker& settled = trainers_.at(static_cast<size_t>(trainer));
  settle(settled, {tokens, samples, seconds, fetch_seconds}, reason, now);
  if (settled.away || settled.clock.in_job()) return;
  if (settled.ahead_bytes.empty()) return settled.clock.enter(trainers_wait_for_, now);
  settled.ahead_bytes.pop_front();
  begin_job(settled, now);
}

void RunActivity::trainers_hold_nothing() {
  const std::lock_guard lock(mutex_);
  const double now = this->now();
  for (Worker& trainer : trainers_) {
    if (trainer.clock.in_job()) wait(trainer, trainers_wait_for_, now);
  }
}

void RunActivity::trainer_waits(int trainer) {
  const std::lock_guard lock(mutex_);
  wait(trainers_.at(static_cast<size_t>(trainer)), trainers_wait_for_, now());
}

void RunActivity::mailbox(const MailboxChange& changed) {
  const std::lock_guard lock(mutex_);
  for (const auto& [home, queue] : changed.homes) homes_[home] = queue;
  kept_.mailbox.queued_later = changed.queued_later;
  kept_.mailbox.features_late = changed.features_late;
  tell_trainers(now());
}

void RunActivity::phase(const RunPhase& phase) {
  const std::lock_guard lock(mutex_);
  const double now = this->now();
  seen_ = now;
  if (phase == kept_.phase) return;
  if (phase.step != kept_.phase.step) {
    kept_.phase_seconds[static_cast<size_t>(kept_.phase.step)].add(now - phase_since_);
    phase_since_ = now;
  }
  kept_.phase = phase;
  tell_trainers(now);
  if (phase.step != RunPhase::Step::kOver) return;
  for (Worker& target : targets_) {
    if (!target.away && !target.clock.in_job()) target.clock.enter(Occupation::kIdle, now);
  }
}

void RunActivity::quarantined(int64_t samples) {
  const std::lock_guard lock(mutex_);
  kept_.quarantined += std::max<int64_t>(0, samples - quarantined_before_);
  quarantined_before_ = samples;
}

RunActivity::Totals RunActivity::totals(double now) const {
  Totals totals;
  totals.time = now;
  for (const Worker& target : targets_) {
    totals.targets += target.clock.seconds(now);
    totals.target_samples += target.samples;
  }
  for (const Worker& trainer : trainers_) {
    totals.trainers += trainer.clock.seconds(now);
    totals.trainer_samples += trainer.samples;
  }
  return totals;
}

void RunActivity::sample(double now) {
  window_.push_back(totals(now));
  if (window_.size() > kWindowSamples + 1) window_.pop_front();
  const Totals& first = window_.front();
  const Totals& last = window_.back();
  RunTimes& times = kept_.window;
  times.targets = last.targets - first.targets;
  times.trainers = last.trainers - first.trainers;
  times.shared_device = shared_device_;
  times.queued_later = kept_.mailbox.queued_later;
  kept_.bottleneck = judge_.judge(times);
  kept_.targets_here = static_cast<int>(here(targets_));
  kept_.trainers_here = static_cast<int>(here(trainers_));
  kept_.capture_samples_per_second = capacity(last.target_samples - first.target_samples,
                                              times.targets[Occupation::kCompute], here(targets_));
  kept_.train_samples_per_second = capacity(last.trainer_samples - first.trainer_samples,
                                            times.trainers[Occupation::kCompute], here(trainers_));
}

void RunActivity::tick(const StoreState& store) {
  const std::lock_guard lock(mutex_);
  const double now = this->now();
  seen_ = now;
  const int64_t hits = kept_.store.cache_hits + store.cache_hits - cache_before_.cache_hits;
  const int64_t misses = kept_.store.cache_misses + store.cache_misses - cache_before_.cache_misses;
  cache_before_ = kept_.store = store;
  kept_.store.cache_hits = hits;
  kept_.store.cache_misses = misses;
  if (window_.empty() || now - window_.back().time >= kSampleSeconds) sample(now);
}

void RunActivity::added(WorkerKind kind, const std::string& device) {
  const std::lock_guard lock(mutex_);
  auto& workers = kind == WorkerKind::kTarget ? targets_ : trainers_;
  workers.push_back({device, OccupationClock(now())});
  workers.back().away = true;
}

void RunActivity::lost(WorkerKind kind, int number) {
  const std::lock_guard lock(mutex_);
  Worker& worker = this->worker(kind, number);
  wait(worker, Occupation::kIdle, now());
  worker.away = true;
}

void RunActivity::restarted(WorkerKind kind, int number) {
  const std::lock_guard lock(mutex_);
  Worker& back = worker(kind, number);
  back.away = false;
  if (kind == WorkerKind::kTrainer && !back.clock.in_job()) {
    back.clock.enter(trainers_wait_for_, now());
  }
  ++kept_.restarts[static_cast<size_t>(kind)];
}

void RunActivity::leases_expired(WorkerKind lost, int64_t micro_batches) {
  const std::lock_guard lock(mutex_);
  kept_.lease_expirations[static_cast<size_t>(lost)] += micro_batches;
}

void RunActivity::health(const std::string& device, const std::optional<DeviceHealth>& health) {
  const std::lock_guard lock(mutex_);
  if (health) {
    kept_.devices[device] = *health;
  } else {
    kept_.devices.erase(device);
  }
}

RunActivitySnapshot RunActivity::snapshot() const {
  const std::lock_guard lock(mutex_);
  const double now = this->now();
  RunActivitySnapshot snapshot = kept_;
  for (const auto& [home, queue] : homes_) snapshot.mailbox.homes.emplace(home, queue);
  snapshot.targets = activities(targets_, now);
  snapshot.trainers = activities(trainers_, now);
  snapshot.silent_seconds = now - seen_;
  snapshot.seconds = now - made_;
  return snapshot;
}

}  // namespace percheron
