// A run's workers that come to other devices, or leave, while it goes on.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/service/worker_set.h"
#include "base/log.h"

namespace percheron {

void WorkerSet::know(const std::vector<std::string>& nodes) {
  const std::lock_guard lock(mutex_);
  nodes_ = nodes;
  proto::Frame frame;
  for (const std::string& node : nodes) frame.mutable_know_nodes()->add_nodes(node);
  for (const auto& [placed, worker] : workers_) ways_.to_worker(placed, frame);
}

Status WorkerSet::try_out(const WorkerPlaces::Devices& devices) {
  std::unique_lock lock(mutex_);
  for (const auto& [placed, roles] : devices) {
    Worker& worker = workers_[placed];
    worker = Worker();
    worker.roles = roles;
    worker.on_trial = true;
    worker.restarts = RestartHistory(limits_);
  }
  for (const auto& [placed, roles] : devices) start_locked(placed, workers_.at(placed));
  Status failed;
  while (true) {
    if (stopping_) return cancelled("the run has ended meanwhile");
    if (!link_error_.empty()) return unavailable(link_error_);
    bool ready = true;
    for (const auto& [placed, roles] : devices) {
      const Worker& worker = workers_.at(placed);
      ready = ready && worker.state == State::kReady;
      if (worker.error.empty()) continue;
      failed =
          failed_precondition(fmt::format("the worker of {}: {}", placed.text(), worker.error));
    }
    if (ready) return ok_status();
    if (!failed.ok()) break;
    changed_.wait(lock);
  }
  std::set<PlacedDevices> gone;
  for (const auto& [placed, roles] : devices) gone.insert(placed);
  lock.unlock();
  const Status ended = end(gone);
  if (!ended.ok()) log_warning("{}", ended.message());
  return failed;
}

void WorkerSet::admit(const WorkerPlaces::Devices& devices) {
  const std::lock_guard lock(mutex_);
  for (const auto& [placed, roles] : devices) {
    Worker& worker = workers_.at(placed);
    worker.on_trial = false;
    if (worker.state == State::kReady) {
      tell_ready(roles);
    } else {  // It ended just now.
      worker.restart_at = now() + limits_.wait_min_seconds;
      changed_.notify_all();
    }
  }
}

void WorkerSet::retire(const WorkerPlaces::Devices& devices) {
  const std::lock_guard lock(mutex_);
  for (const auto& [placed, roles] : devices) {
    Worker& worker = workers_.at(placed);
    worker.retired.targets.insert(worker.retired.targets.end(), roles.targets.begin(),
                                  roles.targets.end());
    worker.retired.trainers.insert(roles.trainers.begin(), roles.trainers.end());
  }
}

void WorkerSet::end_locked(const PlacedDevices& placed, Worker& worker) {
  worker.leaving = true;
  worker.restart_at = 0;
  // Also where its process has ended: the node keeps the devices for the run until it is told.
  proto::Frame frame;
  frame.mutable_end_worker()->set_device(placed.device_text());
  frame.mutable_end_worker()->set_attempt(worker.attempt);
  ways_.to_daemon(placed.node, std::move(frame));
}

Status WorkerSet::end(const std::set<PlacedDevices>& devices) {
  std::unique_lock lock(mutex_);
  for (const PlacedDevices& placed : devices) {
    const auto known = workers_.find(placed);
    if (known != workers_.end()) end_locked(placed, known->second);
  }
  forget_ended_locked();
  while (std::ranges::any_of(devices, [&](const auto& d) { return workers_.count(d) != 0; })) {
    if (stopping_) return cancelled("the run has ended meanwhile");
    if (!link_error_.empty()) return unavailable(link_error_);
    changed_.wait(lock);
  }
  return ok_status();
}

}  // namespace percheron
