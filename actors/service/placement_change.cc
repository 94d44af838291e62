#include "actors/service/placement_change.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace percheron {
namespace {

using Places = std::vector<PlacedDevices>;

bool contains(const Places& places, const PlacedDevices& placed) {
  return std::find(places.begin(), places.end(), placed) != places.end();
}

std::string names(const Places& places) {
  std::vector<std::string> texts;
  for (const PlacedDevices& placed : places) texts.push_back(placed.text());
  return fmt::format("{}", fmt::join(texts, ", "));
}

// One role's side of a change.
struct Side {
  const char* role;  // "target"
  const Places& now;
  const Places &added, &removed;

  bool is_so() const {
    return std::ranges::all_of(added, [&](const auto& d) { return contains(now, d); }) &&
           std::ranges::none_of(removed, [&](const auto& d) { return contains(now, d); });
  }
  Result<Places> after() const {
    Places next = now;
    for (const PlacedDevices& placed : removed) {
      if (contains(added, placed)) {
        return failed_precondition(
            fmt::format("{} is to be added and removed as a {}", placed.text(), role));
      }
      if (std::erase(next, placed) == 0) {
        return failed_precondition(
            fmt::format("{} is no {} of the run: it has {}", placed.text(), role, names(now)));
      }
    }
    for (const PlacedDevices& placed : added) {
      if (contains(next, placed)) {
        return failed_precondition(
            fmt::format("{} is a {} of the run already", placed.text(), role));
      }
      next.push_back(placed);
    }
    if (next.empty()) {
      return failed_precondition(
          fmt::format("no {} of the run would be left: add one in the same order", role));
    }
    return next;
  }
};

Status check_fixed(const ClusterPlacement& now, const ClusterPlacement& next,
                   const proto::Run& run) {
  const bool alone = now.trainers.size() == 1 && next.trainers.size() == 1;
  if (run.mailbox().assignment() != proto::Mailbox::FIXED || alone ||
      now.trainers == next.trainers) {
    return ok_status();
  }
  return failed_precondition(
      "mailbox.assignment is fixed, which promises the same bits, and those depend on the "
      "trainers: they can't be changed");
}

}  // namespace

Result<PlacementChange> read_change(const proto::ScaleRun& order, const std::string& own_node,
                                    const proto::Run& run) {
  const auto size = static_cast<size_t>(run.placement().tensor_parallel());
  PlacementChange change;
  const auto read = [&](const char* key,
                        const google::protobuf::RepeatedPtrField<std::string>& entries,
                        size_t devices) {
    return read_devices(key, {entries.begin(), entries.end()}, own_node, devices);
  };
  PERCHERON_ASSIGN_OR_RETURN(change.add_targets, read("targets", order.add_targets(), size));
  PERCHERON_ASSIGN_OR_RETURN(change.remove_targets, read("targets", order.remove_targets(), size));
  PERCHERON_ASSIGN_OR_RETURN(change.add_trainers, read("trainers", order.add_trainers(), 1));
  PERCHERON_ASSIGN_OR_RETURN(change.remove_trainers, read("trainers", order.remove_trainers(), 1));
  return change;
}

Result<ClusterPlacement> change_placement(const ClusterPlacement& now,
                                          const PlacementChange& change, const proto::Run& run) {
  const Side targets{"target", now.targets, change.add_targets, change.remove_targets};
  const Side trainers{"trainer", now.trainers, change.add_trainers, change.remove_trainers};
  if (targets.is_so() && trainers.is_so()) return now;
  ClusterPlacement next;
  PERCHERON_ASSIGN_OR_RETURN(next.targets, targets.after());
  PERCHERON_ASSIGN_OR_RETURN(next.trainers, trainers.after());
  if (const Status groups = check_groups(next.targets); !groups.ok()) {
    return failed_precondition(groups.message());
  }
  PERCHERON_RETURN_IF_ERROR(check_trainer_nodes(run, next));
  PERCHERON_RETURN_IF_ERROR(check_fixed(now, next, run));
  return next;
}

std::vector<std::string> device_texts(const std::vector<PlacedDevices>& placed) {
  std::vector<std::string> texts;
  for (const PlacedDevices& devices : placed) {
    for (std::string& text : devices.device_texts()) texts.push_back(std::move(text));
  }
  return texts;
}

void set_placement(const ClusterPlacement& placement, proto::Run& run) {
  proto::Placement& written = *run.mutable_placement();
  written.clear_targets();
  written.clear_trainers();
  written.clear_devices();
  for (std::string& text : device_texts(placement.targets)) written.add_targets(std::move(text));
  for (std::string& text : device_texts(placement.trainers)) written.add_trainers(std::move(text));
}

// --- numbers -------------------------------------------------------------------------------------

WorkerPlaces::WorkerPlaces(const ClusterPlacement& placement) {
  for (const std::string& node : placement.nodes()) know(node);
  add(placement.workers());
}

void WorkerPlaces::know(const std::string& node) {
  if (node_number(node) < 0) nodes_.push_back(node);
}

std::optional<PlacedDevices> WorkerPlaces::place_of(WorkerKind kind, int number) const {
  if (kind == WorkerKind::kTarget) {
    const auto known = targets_.find(number);
    return known == targets_.end() ? std::nullopt : std::optional(known->second);
  }
  const auto known = trainers_.find(number);
  return known == trainers_.end() ? std::nullopt : std::optional(known->second.process);
}

int WorkerPlaces::node_number(const std::string& node) const {
  const auto known = std::find(nodes_.begin(), nodes_.end(), node);
  return known == nodes_.end() ? -1 : static_cast<int>(known - nodes_.begin());
}

ClusterPlacement WorkerPlaces::placement() const {
  ClusterPlacement placement;
  for (const auto& [number, placed] : targets_) placement.targets.push_back(placed);
  for (const auto& [number, seat] : trainers_) {
    placement.trainers.push_back({seat.process.node, {seat.device}});
  }
  return placement;
}

WorkerPlaces::Devices WorkerPlaces::workers() const {
  Devices workers;
  for (const auto& [number, placed] : targets_) workers[placed].targets.push_back(number);
  for (const auto& [number, seat] : trainers_) {
    workers[seat.process].trainers[number] = seat.device;
  }
  return workers;
}

namespace {

bool trains_on(const ClusterPlacement::Roles& roles, DeviceId id) {
  return std::ranges::any_of(roles.trainers, [&](const auto& entry) { return entry.second == id; });
}

// Whether a process has all roles that are wanted of it.
bool covers(const ClusterPlacement::Roles& now, const ClusterPlacement::Roles& wanted) {
  return (wanted.targets.empty() || !now.targets.empty()) &&
         std::ranges::all_of(wanted.trainers,
                             [&](const auto& entry) { return trains_on(now, entry.second); });
}

// What a process that stays loses.
ClusterPlacement::Roles lost_roles(const ClusterPlacement::Roles& now,
                                   const ClusterPlacement::Roles& wanted) {
  ClusterPlacement::Roles lost;
  if (wanted.targets.empty()) lost.targets = now.targets;
  for (const auto& [number, device] : now.trainers) {
    if (!trains_on(wanted, device)) lost.trainers[number] = device;
  }
  return lost;
}

bool overlaps(const WorkerPlaces::Devices& processes, const PlacedDevices& placed) {
  return std::ranges::any_of(processes,
                             [&](const auto& entry) { return entry.first.overlaps(placed); });
}

size_t count_targets(const WorkerPlaces::Devices& processes) {
  size_t count = 0;
  for (const auto& [placed, roles] : processes) count += roles.targets.size();
  return count;
}

size_t count_trainers(const WorkerPlaces::Devices& processes) {
  size_t count = 0;
  for (const auto& [placed, roles] : processes) count += roles.trainers.size();
  return count;
}

}  // namespace

Result<WorkerPlaces::Plan> WorkerPlaces::plan(const ClusterPlacement& next) const {
  const Devices now = workers(), wanted = next.workers();
  Plan plan;
  for (const auto& [placed, roles] : now) {
    const auto then = wanted.find(placed);
    if (then != wanted.end() && covers(roles, then->second)) {
      const Roles lost = lost_roles(roles, then->second);
      if (!lost.empty()) plan.retired[placed] = lost;
    } else {
      plan.retired[placed] = roles;
      plan.ended.insert(placed);
    }
  }
  int target = next_target_, trainer = next_trainer_;
  const auto begin = [&](Devices& begun, const auto& is_meant) {
    for (const PlacedDevices& placed : next.targets) {
      if (is_meant(placed)) begun[placed].targets.push_back(target++);
    }
    for (const PlacedDevices& placed : next.trainers) {
      const PlacedDevices& process = next.process_of(placed);
      if (is_meant(process)) begun[process].trainers[trainer++] = placed.devices.front();
    }
  };
  begin(plan.fresh, [&](const PlacedDevices& placed) { return !overlaps(now, placed); });
  begin(plan.moved, [&](const PlacedDevices& placed) {
    const bool stays = now.count(placed) != 0 && plan.ended.count(placed) == 0;
    return !stays && overlaps(now, placed);
  });
  const std::pair<const char*, bool> there[] = {
      {"target", targets_.size() + count_targets(plan.fresh) > count_targets(plan.retired)},
      {"trainer", trainers_.size() + count_trainers(plan.fresh) > count_trainers(plan.retired)}};
  for (const auto& [kind, stays] : there) {
    if (stays || plan.moved.empty()) continue;
    return failed_precondition(
        fmt::format("no {} would be there while {} changes its role: add one on another device "
                    "first, or pause the run with --release-devices",
                    kind, plan.moved.begin()->first.text()));
  }
  return plan;
}

void WorkerPlaces::add(const Devices& devices) {
  for (const auto& [placed, roles] : devices) {
    know(placed.node);
    for (int number : roles.targets) {
      targets_[number] = placed;
      next_target_ = std::max(next_target_, number + 1);
    }
    for (const auto& [number, device] : roles.trainers) {
      trainers_[number] = {placed, device};
      next_trainer_ = std::max(next_trainer_, number + 1);
    }
  }
}

void WorkerPlaces::retire(const Devices& devices) {
  for (const auto& [placed, roles] : devices) {
    for (int number : roles.targets) targets_.erase(number);
    for (const auto& [number, device] : roles.trainers) trainers_.erase(number);
  }
}

}  // namespace percheron
