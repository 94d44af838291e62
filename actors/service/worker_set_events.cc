// What becomes of a run's workers: what they and their daemons say, and who is started again.

#include <fmt/format.h>

#include <algorithm>

#include "actors/service/worker_set.h"
#include "base/log.h"

namespace percheron {

void WorkerSet::take(const PlacedDevices& from, const proto::WorkerLoaded& loaded) {
  const std::lock_guard lock(mutex_);
  const auto known = workers_.find(from);
  if (known == workers_.end() || loaded.attempt() != known->second.attempt) return;
  Worker& worker = known->second;
  worker.error = loaded.error();
  if (going_ && worker.error.empty()) worker.error = difference_locked(loaded);
  if (worker.error.empty()) {
    worker.loaded = loaded;
    worker.state = State::kPreparing;
    if (going_ && !stopping_) send_prepare_locked(from, *prepare_);
  } else if (going_) {
    log_error("the worker of {}: {}", from.text(), worker.error);
  }
  changed_.notify_all();
}

void WorkerSet::take(const PlacedDevices& from, const proto::WorkerPrepared& prepared) {
  const std::lock_guard lock(mutex_);
  const auto known = workers_.find(from);
  if (known == workers_.end() || prepared.attempt() != known->second.attempt) return;
  Worker& worker = known->second;
  worker.error = prepared.error();
  if (worker.error.empty()) {
    worker.prepared = prepared;
    worker.state = State::kReady;
    worker.restarts.working(now(), step_);
    if (going_ && !stopping_ && !worker.on_trial) tell_ready(worker.roles);
  }
  changed_.notify_all();
}

void WorkerSet::lost_locked(const PlacedDevices& placed, Worker& worker, const std::string& why,
                            bool unreachable) {
  const bool was_ready = worker.state == State::kReady;
  worker.state = State::kEnded;
  worker.error = why;
  worker.absent = unreachable && !going_;
  changed_.notify_all();
  if (!going_ || stopping_ || worker.on_trial) return;
  if (was_ready) tell_lost(worker.roles);
  if (worker.leaving) return;
  for (int number : worker.retired.targets) std::erase(worker.roles.targets, number);
  for (const auto& [number, device] : worker.retired.trainers) worker.roles.trainers.erase(number);
  worker.retired = {};
  worker.leaving = worker.roles.empty();
  if (worker.leaving) return;
  if (unreachable) {
    if (was_ready) log_warning("the worker of {} is lost: {}", placed.text(), why);
    worker.restart_at = now() + limits_.unreachable_wait_seconds;
    return;
  }
  const std::optional<double> wait = worker.restarts.ended(now(), step_);
  if (!wait) {
    log_error("the worker of {} has ended {} times within {:.0f} s and stays away: {}",
              placed.text(), worker.restarts.count(), limits_.window_seconds, why);
    return;
  }
  worker.restart_at = now() + *wait;
  log_warning("the worker of {} ended ({}) and is started again in {:.1f} s", placed.text(), why,
              *wait);
}

void WorkerSet::take(const PlacedDevices& of, const proto::WorkerEnded& ended) {
  const std::lock_guard lock(mutex_);
  const auto known = workers_.find(of);
  if (known == workers_.end()) return;
  // Word of a process that was replaced meanwhile. A node that is lost does not know attempts.
  if (ended.has_attempt() && ended.attempt() != known->second.attempt) return;
  ended_locked(of, known->second, ended);
  forget_ended_locked();
}

void WorkerSet::node_lost(const std::string& node, const proto::WorkerEnded& ended) {
  const std::lock_guard lock(mutex_);
  for (auto& [placed, worker] : workers_) {
    if (placed.node == node) ended_locked(placed, worker, ended);
  }
  forget_ended_locked();
}

void WorkerSet::ended_locked(const PlacedDevices& placed, Worker& worker,
                             const proto::WorkerEnded& ended) {
  if (worker.state == State::kEnded) return;
  const std::string why = worker.error.empty() ? ended.how() : worker.error;
  lost_locked(placed, worker, why, ended.unreachable());
}

void WorkerSet::forget_ended_locked() {
  std::erase_if(workers_, [](const auto& entry) {
    return entry.second.leaving && entry.second.state == State::kEnded;
  });
}

void WorkerSet::link_lost(const std::string& why) {
  const std::lock_guard lock(mutex_);
  link_error_ = why;
  changed_.notify_all();
}

void WorkerSet::restart_ended() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    double next = now() + 3600;
    for (auto& [placed, worker] : workers_) {
      if (worker.restart_at == 0) continue;
      if (worker.restart_at <= now()) {
        ++worker.started_again;
        start_locked(placed, worker);
      } else {
        next = std::min(next, worker.restart_at);
      }
    }
    changed_.wait_for(lock, std::chrono::duration<double>(std::max(0.001, next - now())));
  }
}

}  // namespace percheron
