#include "actors/service/worker_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace percheron {

WorkerSet::WorkerSet(ClusterPlacement placement, proto::StartWorker start, Ways ways,
                     RunControl& control, const Clock& clock, RestartLimits limits)
    : placement_(std::move(placement)),
      start_(std::move(start)),
      ways_(std::move(ways)),
      control_(control),
      clock_(clock),
      limits_(limits) {
  for (const auto& [placed, roles] : placement_.workers()) workers_[placed].roles = roles;
}

void WorkerSet::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (restarter_.joinable()) restarter_.join();
}

void WorkerSet::spawn_locked(const PlacedDevice& placed, Worker& worker) {
  worker.state = State::kLoading;
  worker.error.clear();
  worker.restart_at = 0;
  proto::Frame frame;
  proto::StartWorker& start = *frame.mutable_spawn()->mutable_worker();
  start = start_;
  start.set_node(placed.node);
  start.set_device(to_string(placed.device));
  for (int number : worker.roles.targets) start.add_targets(number);
  for (int number : worker.roles.trainers) start.add_trainers(number);
  start.set_targets_total(static_cast<int>(placement_.targets.size()));
  start.set_trainers_total(static_cast<int>(placement_.trainers.size()));
  for (const std::string& node : placement_.nodes()) start.add_nodes(node);
  start.set_cpu_devices(placement_.cpu_devices(placed.node));
  start.set_attempt(worker.attempt);
  ways_.to_daemon(placed.node, std::move(frame));
}

Status WorkerSet::wait_for(State state) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (!link_error_.empty()) return unavailable(link_error_);
    bool all = true;
    for (const auto& [placed, worker] : workers_) {
      if (!worker.error.empty()) {
        const std::string text = fmt::format("the worker of {} ({}): {}", placed.text(),
                                             worker.roles.text(), worker.error);
        // One that died may do better next time; one that says what is wrong will not.
        return worker.state == State::kEnded ? unavailable(text) : failed_precondition(text);
      }
      all = all && worker.state == state;
    }
    if (all) return ok_status();
    changed_.wait(lock);
  }
}

Status WorkerSet::load(const RunSetup& setup, RunObserver& observer) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [placed, worker] : workers_) spawn_locked(placed, worker);
  }
  PERCHERON_RETURN_IF_ERROR(wait_for(State::kPreparing));
  const std::lock_guard lock(mutex_);
  const std::string& target_hash = workers_.begin()->second.loaded.target_hash();
  const std::string held_out =
      setup.data.held_out ? setup.data.held_out->content_hash() : std::string();
  for (const auto& [placed, worker] : workers_) {
    const struct {
      const char* what;
      const std::string& theirs;
      const std::string& ours;
    } compared[] = {
        {"the target's weights", worker.loaded.target_hash(), target_hash},
        {"the training data", worker.loaded.data_hash(), setup.data.train->content_hash()},
        {"the held-out data", worker.loaded.held_out_hash(), held_out}};
    for (const auto& [what, theirs, ours] : compared) {
      if (theirs == ours) continue;
      return failed_precondition(fmt::format(
          "{} on {} are other ones (hash {}) than elsewhere ({}): give every node the same files",
          what, placed.text(), theirs, ours));
    }
    observer.on_event(fmt::format("{} ({}): {}", placed.text(), worker.roles.text(),
                                  worker.loaded.device_text()));
  }
  return ok_status();
}

std::string WorkerSet::target_hash() {
  const std::lock_guard lock(mutex_);
  return workers_.begin()->second.loaded.target_hash();
}

void WorkerSet::send_prepare_locked(const PlacedDevice& placed) {
  proto::Frame frame;
  *frame.mutable_prepare() = *prepare_;
  ways_.to_worker(placed, std::move(frame));
}

Status WorkerSet::prepare(const proto::PrepareWorker& order, RunObserver& observer) {
  {
    const std::lock_guard lock(mutex_);
    prepare_ = order;
    for (const auto& [placed, worker] : workers_) send_prepare_locked(placed);
  }
  PERCHERON_RETURN_IF_ERROR(wait_for(State::kReady));
  const std::lock_guard lock(mutex_);
  std::optional<uint32_t> checksum;
  std::set<std::string> said;
  for (const auto& [placed, worker] : workers_) {
    for (const std::string& note : worker.prepared.notes()) {
      if (said.insert(note).second) observer.on_event(note);
    }
    for (uint32_t own : worker.prepared.checksums()) {
      if (checksum.value_or(own) != own) {
        return internal_error(
            fmt::format("the trainers start from different parameters: that of {} has checksum "
                        "{:08x}, another {:08x}",
                        placed.text(), own, *checksum));
      }
      checksum = own;
    }
  }
  // What a worker is told that is started again: its parameters come from a later checkpoint.
  prepare_->clear_checkpoint();
  going_ = true;
  restarter_ = std::thread([this] { restart_ended(); });
  return ok_status();
}

// --- what comes in -------------------------------------------------------------------------------

void WorkerSet::take(const PlacedDevice& from, const proto::WorkerLoaded& loaded) {
  const std::lock_guard lock(mutex_);
  const auto known = workers_.find(from);
  if (known == workers_.end() || loaded.attempt() != known->second.attempt) return;
  Worker& worker = known->second;
  if (going_ && loaded.target_hash() != workers_.begin()->second.loaded.target_hash() &&
      loaded.error().empty()) {
    worker.error = "it has another target than before: its files were changed";
    log_error("the worker of {}: {}", from.text(), worker.error);
    return;
  }
  worker.error = loaded.error();
  if (worker.error.empty()) {
    worker.loaded = loaded;
    worker.state = State::kPreparing;
    if (going_ && !stopping_) send_prepare_locked(from);
  } else if (going_) {
    log_error("the worker of {}: {}", from.text(), worker.error);
  }
  changed_.notify_all();
}

void WorkerSet::take(const PlacedDevice& from, const proto::WorkerPrepared& prepared) {
  const std::lock_guard lock(mutex_);
  const auto known = workers_.find(from);
  if (known == workers_.end() || prepared.attempt() != known->second.attempt) return;
  Worker& worker = known->second;
  worker.error = prepared.error();
  if (worker.error.empty()) {
    worker.prepared = prepared;
    worker.state = State::kReady;
    if (going_ && !stopping_) {
      for (int number : worker.roles.targets) control_.worker_ready(WorkerKind::kTarget, number);
      for (int number : worker.roles.trainers) control_.worker_ready(WorkerKind::kTrainer, number);
    }
  }
  changed_.notify_all();
}

void WorkerSet::lost_locked(const PlacedDevice& placed, Worker& worker, const std::string& why,
                            bool unreachable) {
  const bool was_ready = worker.state == State::kReady;
  worker.state = State::kEnded;
  worker.error = why;
  changed_.notify_all();
  if (!going_ || stopping_) return;
  if (was_ready) {
    for (int number : worker.roles.targets) control_.worker_lost(WorkerKind::kTarget, number);
    for (int number : worker.roles.trainers) control_.worker_lost(WorkerKind::kTrainer, number);
  }
  if (unreachable) {
    if (was_ready) log_warning("the worker of {} is lost: {}", placed.text(), why);
    worker.restart_at = now() + limits_.unreachable_wait_seconds;
    return;
  }
  const double since = now() - limits_.window_seconds;
  std::erase_if(worker.restarts, [&](double time) { return time < since; });
  if (static_cast<int>(worker.restarts.size()) >= limits_.restarts_max) {
    log_error("the worker of {} has ended {} times within {:.0f} s and stays away: {}",
              placed.text(), worker.restarts.size() + 1, limits_.window_seconds, why);
    return;
  }
  const double wait = std::min(
      limits_.wait_max_seconds,
      limits_.wait_min_seconds * static_cast<double>(int64_t{1} << worker.restarts.size()));
  worker.restarts.push_back(now());
  worker.restart_at = now() + wait;
  log_warning("the worker of {} ended ({}) and is started again in {:.1f} s", placed.text(), why,
              wait);
}

void WorkerSet::take(const PlacedDevice& of, const proto::WorkerEnded& ended) {
  const std::lock_guard lock(mutex_);
  const auto known = workers_.find(of);
  if (known == workers_.end() || known->second.state == State::kEnded) return;
  // Word of a process that was replaced meanwhile. A node that is lost does not know attempts.
  if (ended.has_attempt() && ended.attempt() != known->second.attempt) return;
  const std::string why = known->second.error.empty() ? ended.how() : known->second.error;
  lost_locked(of, known->second, why, ended.unreachable());
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
        ++worker.attempt;
        spawn_locked(placed, worker);
      } else {
        next = std::min(next, worker.restart_at);
      }
    }
    changed_.wait_for(lock, std::chrono::duration<double>(std::max(0.001, next - now())));
  }
}

std::vector<proto::WorkerState> WorkerSet::states() {
  const std::lock_guard lock(mutex_);
  std::vector<proto::WorkerState> states;
  for (const auto& [placed, worker] : workers_) {
    proto::WorkerState state;
    state.set_node(placed.node);
    state.set_device(to_string(placed.device));
    state.set_role(worker.roles.text());
    state.set_restarts(worker.attempt);
    switch (worker.state) {
      case State::kLoading: state.set_state("loading"); break;
      case State::kPreparing: state.set_state("preparing"); break;
      case State::kReady: state.set_state("ready"); break;
      case State::kEnded: state.set_state("lost"); break;
    }
    states.push_back(state);
  }
  return states;
}

}  // namespace percheron
