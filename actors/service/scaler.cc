#include "actors/service/scaler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <ranges>
#include <utility>

#include "base/log.h"

namespace percheron {
namespace {

constexpr auto kLookAgain = std::chrono::seconds(1);

std::string list(const std::vector<PlacedDevices>& devices) {
  std::vector<std::string> texts;
  for (const PlacedDevices& placed : devices) texts.push_back(placed.text());
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string text_of(const ClusterPlacement& placement) {
  return fmt::format("has targets {} and trainers {}", list(placement.targets),
                     list(placement.trainers));
}

}  // namespace

Scaler::Scaler(const ClusterPlacement& placement, proto::Run run, std::string own_node,
               WorkerSet& workers, RunControl& control, Ways ways)
    : run_(std::move(run)),
      own_node_(std::move(own_node)),
      workers_(workers),
      control_(control),
      ways_(std::move(ways)),
      places_(placement) {
  // The run tells only of changes.
  for (size_t i = 0; i < placement.targets.size(); ++i) report_.targets.insert(static_cast<int>(i));
  for (size_t i = 0; i < placement.trainers.size(); ++i) {
    report_.trainers.push_back(static_cast<int>(i));
  }
}

void Scaler::take(const proto::ScaleRun& order) {
  const std::lock_guard lock(mutex_);
  orders_.push_back(order);
  changed_.notify_all();
}

void Scaler::begin() {
  const std::lock_guard lock(mutex_);
  if (!stopping_) thread_ = std::thread([this] { work(); });
}

void Scaler::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Scaler::on_workers(const WorkersReport& report) {
  const std::lock_guard lock(mutex_);
  report_ = report;
  changed_.notify_all();
}

ClusterPlacement Scaler::placement() const {
  const std::lock_guard lock(mutex_);
  return places_.placement();
}

std::vector<std::string> Scaler::nodes() const {
  const std::lock_guard lock(mutex_);
  return places_.nodes();
}

std::optional<PlacedDevices> Scaler::place_of(WorkerKind kind, int number) const {
  const std::lock_guard lock(mutex_);
  return places_.place_of(kind, number);
}

int Scaler::node_number(const std::string& node) const {
  const std::lock_guard lock(mutex_);
  return places_.node_number(node);
}

void Scaler::work() {
  while (true) {
    proto::ScaleRun order;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !orders_.empty(); });
      if (stopping_) return;
      order = orders_.front();
      orders_.pop_front();
    }
    const Status status = perform(order);
    if (status.code() == StatusCode::kCancelled) return;
    if (order.request() == 0) {  // The run's own: nobody waits.
      if (!status.ok()) log_warning("placement.auto_balance: {}", status.message());
      continue;
    }
    proto::RunOrderReply reply;
    reply.set_request(order.request());
    if (!status.ok()) reply.set_error(status.message());
    reply.set_text(text_of(placement()));
    ways_.reply(reply);
  }
}

Status Scaler::perform(const proto::ScaleRun& order) {
  PERCHERON_ASSIGN_OR_RETURN(const PlacementChange change, read_change(order, own_node_, run_));
  PERCHERON_ASSIGN_OR_RETURN(const ClusterPlacement next,
                             change_placement(placement(), change, run_));
  const ClusterPlacement now = placement();
  if (next.targets == now.targets && next.trainers == now.trainers) return ok_status();
  return change_to(next);
}

Status Scaler::change_to(const ClusterPlacement& next) {
  WorkerPlaces::Plan plan;
  std::vector<std::string> nodes;
  {
    const std::lock_guard lock(mutex_);
    PERCHERON_ASSIGN_OR_RETURN(plan, places_.plan(next));
    for (const std::string& node : next.nodes()) places_.know(node);
    nodes = places_.nodes();
  }
  // Before any ticket can name them.
  workers_.know(nodes);
  PERCHERON_RETURN_IF_ERROR(workers_.try_out(plan.fresh));
  keep(next);
  admit(plan.fresh);
  retire(plan.retired);
  PERCHERON_RETURN_IF_ERROR(wait_for(plan.fresh, plan.retired));
  PERCHERON_RETURN_IF_ERROR(workers_.end(plan.ended));
  if (plan.moved.empty()) return ok_status();
  const Status tried = workers_.try_out(plan.moved);
  if (!tried.ok()) {
    if (tried.code() == StatusCode::kCancelled) return tried;
    keep(placement());
    return tried.with_context("its devices are not in the run any more");
  }
  admit(plan.moved);
  return wait_for(plan.moved, {});
}

void Scaler::keep(const ClusterPlacement& placement) {
  proto::RunPlacement message;
  for (std::string& text : device_texts(placement.targets)) message.add_targets(std::move(text));
  for (std::string& text : device_texts(placement.trainers)) message.add_trainers(std::move(text));
  const std::vector<std::string> used = placement.nodes();
  for (const std::string& node : nodes()) {
    if (std::ranges::find(used, node) == used.end()) message.add_former_nodes(node);
  }
  ways_.keep(message);
}

void Scaler::admit(const WorkerPlaces::Devices& devices) {
  struct Place {
    const PlacedDevices* process;
    PlacedDevices own;
  };
  // Numbers grow one by one, whatever order devices stand in.
  std::map<std::pair<WorkerKind, int>, Place> numbers;
  for (const auto& [placed, roles] : devices) {
    for (int number : roles.targets) numbers[{WorkerKind::kTarget, number}] = {&placed, placed};
    for (const auto& [number, device] : roles.trainers) {
      numbers[{WorkerKind::kTrainer, number}] = {&placed, {placed.node, {device}}};
    }
  }
  {
    const std::lock_guard lock(mutex_);
    places_.add(devices);
  }
  for (const auto& [worker, place] : numbers) {
    const auto& [kind, number] = worker;
    ways_.address(kind, number, *place.process);
    control_.worker_added(kind, number, node_number(place.own.node), place.own.text());
  }
  workers_.admit(devices);
}

void Scaler::retire(const WorkerPlaces::Devices& devices) {
  {
    const std::lock_guard lock(mutex_);
    places_.retire(devices);
  }
  workers_.retire(devices);
  for (const auto& [placed, roles] : devices) {
    for (int number : roles.targets) control_.worker_retired(WorkerKind::kTarget, number);
    for (const auto& [number, device] : roles.trainers) {
      control_.worker_retired(WorkerKind::kTrainer, number);
    }
  }
}

Status Scaler::wait_for(const WorkerPlaces::Devices& working, const WorkerPlaces::Devices& gone) {
  const auto is_there = [this](int number, WorkerKind kind) {
    const std::vector<int>& trainers = report_.trainers;
    return kind == WorkerKind::kTarget ? report_.targets.count(number) != 0
                                       : std::ranges::find(trainers, number) != trainers.end();
  };
  const auto all = [&](const WorkerPlaces::Devices& devices, bool there) {
    return std::ranges::all_of(devices, [&](const auto& entry) {
      const auto so = [&](WorkerKind kind) {
        return [&, kind](int number) { return is_there(number, kind) == there; };
      };
      return std::ranges::all_of(entry.second.targets, so(WorkerKind::kTarget)) &&
             std::ranges::all_of(entry.second.trainers | std::views::keys,
                                 so(WorkerKind::kTrainer));
    });
  };
  const auto is_so = [&] { return stopping_ || (all(working, true) && all(gone, false)); };
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLookAgain, is_so)) {
    lock.unlock();
    const std::string given_up = workers_.given_up(working);
    if (!given_up.empty()) return unavailable(given_up);
    lock.lock();
  }
  return stopping_ ? cancelled("the run has ended meanwhile") : ok_status();
}

}  // namespace percheron
