#include "actors/service/worker_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace percheron {
namespace {

bool has(const std::vector<int>& numbers, int number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

}  // namespace

WorkerSet::WorkerSet(ClusterPlacement placement, proto::StartWorker start, Ways ways,
                     RunControl& control, const Clock& clock, RestartLimits limits)
    : start_(std::move(start)),
      ways_(std::move(ways)),
      control_(control),
      clock_(clock),
      limits_(limits),
      nodes_(placement.nodes()) {
  for (const auto& [placed, roles] : placement.workers()) workers_[placed].roles = roles;
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
  // The process has places up to its own numbers; it knows nothing of later ones.
  start.set_targets_total(worker.roles.targets.empty() ? 0 : worker.roles.targets.back() + 1);
  start.set_trainers_total(worker.roles.trainers.empty() ? 0 : worker.roles.trainers.back() + 1);
  for (const std::string& node : nodes_) start.add_nodes(node);
  start.set_cpu_devices(cpu_devices_locked(placed.node));
  start.set_attempt(worker.attempt);
  ways_.to_daemon(placed.node, std::move(frame));
}

Status WorkerSet::wait_for(State state) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (!link_error_.empty()) return unavailable(link_error_);
    bool all = true;
    for (const auto& [placed, worker] : workers_) {
      if (worker.absent) continue;
      if (!worker.error.empty()) {
        const std::string text = fmt::format("the worker of {} ({}): {}", placed.text(),
                                             worker.roles.text(), worker.error);
        // One that died may do better next time; one that says what is wrong will not.
        return worker.state == State::kEnded ? unavailable(text) : failed_precondition(text);
      }
      all = all && worker.state == state;
    }
    PERCHERON_RETURN_IF_ERROR(check_present_locked());
    if (all) return ok_status();
    changed_.wait(lock);
  }
}

Status WorkerSet::check_present_locked() const {
  std::string why;
  bool target = false, trainer = false;
  for (const auto& [placed, worker] : workers_) {
    if (worker.absent) why = fmt::format("the worker of {}: {}", placed.text(), worker.error);
    target = target || (!worker.absent && !worker.roles.targets.empty());
    trainer = trainer || (!worker.absent && !worker.roles.trainers.empty());
  }
  return target && trainer ? ok_status() : unavailable(why);
}

void WorkerSet::tell_absent_locked() {
  for (auto& [placed, worker] : workers_) {
    if (!worker.absent) continue;
    worker.absent = false;
    for (int number : worker.roles.targets) control_.worker_lost(WorkerKind::kTarget, number);
    for (int number : worker.roles.trainers) control_.worker_lost(WorkerKind::kTrainer, number);
    worker.restart_at = now() + limits_.unreachable_wait_seconds;
  }
}

Status WorkerSet::load(const RunSetup& setup, RunObserver& observer) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [placed, worker] : workers_) spawn_locked(placed, worker);
  }
  PERCHERON_RETURN_IF_ERROR(wait_for(State::kPreparing));
  const std::lock_guard lock(mutex_);
  for (const auto& [placed, worker] : workers_) {
    if (worker.absent) {
      observer.on_event(
          fmt::format("{} ({}) is away: {}", placed.text(), worker.roles.text(), worker.error));
    } else if (target_hash_.empty()) {
      target_hash_ = worker.loaded.target_hash();
    }
  }
  data_hash_ = setup.data.train->content_hash();
  held_out_hash_ = setup.data.held_out ? setup.data.held_out->content_hash() : std::string();
  for (const auto& [placed, worker] : workers_) {
    if (worker.absent) continue;
    const std::string difference = difference_locked(worker.loaded);
    if (!difference.empty()) {
      return failed_precondition(fmt::format("on {}, {}", placed.text(), difference));
    }
    observer.on_event(fmt::format("{} ({}): {}", placed.text(), worker.roles.text(),
                                  worker.loaded.device_text()));
  }
  return ok_status();
}

std::string WorkerSet::difference_locked(const proto::WorkerLoaded& loaded) const {
  const struct {
    const char* what;
    const std::string& theirs;
    const std::string& ours;
  } compared[] = {{"the target's weights", loaded.target_hash(), target_hash_},
                  {"the training data", loaded.data_hash(), data_hash_},
                  {"the held-out data", loaded.held_out_hash(), held_out_hash_}};
  for (const auto& [what, theirs, ours] : compared) {
    if (theirs == ours) continue;
    return fmt::format(
        "{} are other ones (hash {}) than elsewhere ({}): give every node the same files", what,
        theirs, ours);
  }
  return {};
}

int WorkerSet::cpu_devices_locked(const std::string& node) const {
  return static_cast<int>(std::ranges::count_if(workers_, [&](const auto& entry) {
    return entry.first.node == node && entry.first.device.kind == DeviceKind::kCpu;
  }));
}

std::string WorkerSet::target_hash() {
  const std::lock_guard lock(mutex_);
  return target_hash_;
}

void WorkerSet::tell_ready(const ClusterPlacement::Roles& roles) {
  for (int number : roles.targets) control_.worker_ready(WorkerKind::kTarget, number);
  for (int number : roles.trainers) control_.worker_ready(WorkerKind::kTrainer, number);
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
    for (const auto& [placed, worker] : workers_) {
      if (!worker.absent) send_prepare_locked(placed);
    }
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
  tell_absent_locked();
  restarter_ = std::thread([this] { restart_ended(); });
  return ok_status();
}

// --- what comes in -------------------------------------------------------------------------------

void WorkerSet::take(const PlacedDevice& from, const proto::WorkerLoaded& loaded) {
  const std::lock_guard lock(mutex_);
  const auto known = workers_.find(from);
  if (known == workers_.end() || loaded.attempt() != known->second.attempt) return;
  Worker& worker = known->second;
  worker.error = loaded.error();
  if (going_ && worker.error.empty()) worker.error = difference_locked(loaded);
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
    if (going_ && !stopping_ && !worker.on_trial) tell_ready(worker.roles);
  }
  changed_.notify_all();
}

void WorkerSet::lost_locked(const PlacedDevice& placed, Worker& worker, const std::string& why,
                            bool unreachable) {
  const bool was_ready = worker.state == State::kReady;
  worker.state = State::kEnded;
  worker.error = why;
  worker.absent = unreachable && !going_;
  changed_.notify_all();
  if (!going_ || stopping_ || worker.on_trial) return;
  if (was_ready) {
    for (int number : worker.roles.targets) control_.worker_lost(WorkerKind::kTarget, number);
    for (int number : worker.roles.trainers) control_.worker_lost(WorkerKind::kTrainer, number);
  }
  if (worker.leaving) return;
  std::erase_if(worker.roles.targets,
                [&](int number) { return has(worker.retired.targets, number); });
  std::erase_if(worker.roles.trainers,
                [&](int number) { return has(worker.retired.trainers, number); });
  worker.retired = {};
  worker.leaving = worker.roles.targets.empty() && worker.roles.trainers.empty();
  if (worker.leaving) return;
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

void WorkerSet::ended_locked(const PlacedDevice& placed, Worker& worker,
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
        ++worker.attempt;
        spawn_locked(placed, worker);
      } else {
        next = std::min(next, worker.restart_at);
      }
    }
    changed_.wait_for(lock, std::chrono::duration<double>(std::max(0.001, next - now())));
  }
}

// --- workers that are placed elsewhere -----------------------------------------------------------

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
  }
  for (const auto& [placed, roles] : devices) spawn_locked(placed, workers_.at(placed));
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
  std::set<PlacedDevice> gone;
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
    worker.retired.trainers.insert(worker.retired.trainers.end(), roles.trainers.begin(),
                                   roles.trainers.end());
  }
}

void WorkerSet::end_locked(const PlacedDevice& placed, Worker& worker) {
  worker.leaving = true;
  worker.restart_at = 0;
  if (worker.state == State::kEnded) return;
  proto::Frame frame;
  frame.mutable_end_worker()->set_device(to_string(placed.device));
  ways_.to_daemon(placed.node, std::move(frame));
}

Status WorkerSet::end(const std::set<PlacedDevice>& devices) {
  std::unique_lock lock(mutex_);
  for (const PlacedDevice& placed : devices) {
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

std::string WorkerSet::given_up(const std::map<PlacedDevice, ClusterPlacement::Roles>& devices) {
  const std::lock_guard lock(mutex_);
  for (const auto& [placed, roles] : devices) {
    const auto known = workers_.find(placed);
    if (known == workers_.end()) continue;
    const Worker& worker = known->second;
    if (worker.state != State::kEnded || worker.restart_at > 0 || worker.leaving) continue;
    return fmt::format("the worker of {} ({}) is not started again: {}", placed.text(),
                       roles.text(), worker.error);
  }
  return "";
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
    const auto add = [&state](proto::ActorMessage::Role role, const std::vector<int>& numbers) {
      for (const int number : numbers) {
        proto::ActorState& actor = *state.add_actors();
        actor.set_role(role);
        actor.set_number(number);
      }
    };
    add(proto::ActorMessage::TARGET, worker.roles.targets);
    add(proto::ActorMessage::TRAINER, worker.roles.trainers);
    switch (worker.state) {
      case State::kLoading: state.set_state("loading"); break;
      case State::kPreparing: state.set_state("preparing"); break;
      case State::kReady: state.set_state("ready"); break;
      case State::kEnded: state.set_state("lost"); break;
    }
    if (worker.leaving) state.set_state("leaving");
    states.push_back(state);
  }
  return states;
}

}  // namespace percheron
