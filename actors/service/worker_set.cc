#include "actors/service/worker_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace percheron {
WorkerSet::WorkerSet(ClusterPlacement placement, proto::StartWorker start, Ways ways,
                     RunControl& control, const Clock& clock, RestartLimits limits)
    : start_(std::move(start)),
      ways_(std::move(ways)),
      control_(control),
      clock_(clock),
      limits_(limits),
      nodes_(placement.nodes()) {
  for (const auto& [placed, roles] : placement.workers()) {
    Worker& worker = workers_[placed];
    worker.roles = roles;
    worker.restarts = RestartHistory(limits_);
  }
}

void WorkerSet::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (restarter_.joinable()) restarter_.join();
}

void WorkerSet::start_locked(const PlacedDevices& placed, Worker& worker) {
  // A number that an earlier process of these devices had would let its late words pass for ours.
  worker.attempt = attempts_[placed]++;
  spawn_locked(placed, worker);
}

void WorkerSet::spawn_locked(const PlacedDevices& placed, Worker& worker) {
  worker.state = State::kLoading;
  worker.error.clear();
  worker.restart_at = 0;
  proto::Frame frame;
  proto::StartWorker& start = *frame.mutable_spawn()->mutable_worker();
  start = start_;
  start.set_node(placed.node);
  start.set_device(placed.device_text());
  const ClusterPlacement::Roles& roles = worker.roles;
  for (int number : roles.targets) start.add_targets(number);
  for (const auto& [number, device] : roles.trainers) {
    start.add_trainers(number);
    start.add_trainer_devices(to_string(device));
  }
  // The process has places up to its own numbers; it knows nothing of later ones.
  start.set_targets_total(roles.targets.empty() ? 0 : roles.targets.back() + 1);
  start.set_trainers_total(roles.trainers.empty() ? 0 : roles.trainers.rbegin()->first + 1);
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
    tell_lost(worker.roles);
    worker.restart_at = now() + limits_.unreachable_wait_seconds;
  }
}

Status WorkerSet::load(const RunSetup& setup, RunObserver& observer) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [placed, worker] : workers_) start_locked(placed, worker);
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
  int count = 0;
  for (const auto& [placed, worker] : workers_) {
    if (placed.node != node) continue;
    count += static_cast<int>(std::ranges::count_if(
        placed.devices, [](DeviceId id) { return id.kind == DeviceKind::kCpu; }));
  }
  return count;
}

std::string WorkerSet::target_hash() {
  const std::lock_guard lock(mutex_);
  return target_hash_;
}

void WorkerSet::tell_ready(const ClusterPlacement::Roles& roles) {
  for (int number : roles.targets) control_.worker_ready(WorkerKind::kTarget, number);
  for (const auto& [number, device] : roles.trainers) {
    control_.worker_ready(WorkerKind::kTrainer, number);
  }
}

void WorkerSet::tell_lost(const ClusterPlacement::Roles& roles) {
  for (int number : roles.targets) control_.worker_lost(WorkerKind::kTarget, number);
  for (const auto& [number, device] : roles.trainers) {
    control_.worker_lost(WorkerKind::kTrainer, number);
  }
}

proto::WeightsCompared WorkerSet::weights_compared() {
  const std::lock_guard lock(mutex_);
  return weights_compared_;
}

void WorkerSet::send_prepare_locked(const PlacedDevices& placed,
                                    const proto::PrepareWorker& order) {
  proto::Frame frame;
  *frame.mutable_prepare() = order;
  ways_.to_worker(placed, std::move(frame));
}

Status WorkerSet::prepare(const proto::PrepareWorker& order, RunObserver& observer) {
  {
    const std::lock_guard lock(mutex_);
    prepare_ = order;
    bool compared = false;
    for (const auto& [placed, worker] : workers_) {
      if (worker.absent) continue;
      proto::PrepareWorker own = order;
      own.set_compare_weights(!compared && !worker.roles.targets.empty());
      compared = compared || own.compare_weights();
      send_prepare_locked(placed, own);
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
    if (worker.prepared.has_weights()) weights_compared_ = worker.prepared.weights();
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

std::optional<int> WorkerSet::attempt_of(const PlacedDevices& placed) {
  const std::lock_guard lock(mutex_);
  const auto known = workers_.find(placed);
  return known == workers_.end() ? std::nullopt : std::optional(known->second.attempt);
}

void WorkerSet::step_committed(int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = std::max(step_, step);
}

std::string WorkerSet::given_up(const WorkerPlaces::Devices& devices) {
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
    state.set_device(placed.device_text());
    state.set_role(worker.roles.text());
    state.set_restarts(worker.started_again);
    for (const int number : worker.roles.targets) {
      proto::ActorState& actor = *state.add_actors();
      actor.set_role(proto::ActorMessage::TARGET);
      actor.set_number(number);
    }
    for (const auto& [number, device] : worker.roles.trainers) {
      proto::ActorState& actor = *state.add_actors();
      actor.set_role(proto::ActorMessage::TRAINER);
      actor.set_number(number);
      if (placed.devices.size() > 1) actor.set_device(to_string(device));
    }
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
