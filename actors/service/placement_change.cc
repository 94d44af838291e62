#include "actors/service/placement_change.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace percheron {
namespace {

using Places = std::vector<PlacedDevice>;

bool contains(const Places& places, const PlacedDevice& placed) {
  return std::find(places.begin(), places.end(), placed) != places.end();
}

std::string names(const Places& places) {
  std::vector<std::string> texts;
  for (const PlacedDevice& placed : places) texts.push_back(placed.text());
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
    for (const PlacedDevice& placed : removed) {
      if (contains(added, placed)) {
        return failed_precondition(
            fmt::format("{} is to be added and removed as a {}", placed.text(), role));
      }
      if (std::erase(next, placed) == 0) {
        return failed_precondition(
            fmt::format("{} is no {} of the run: it has {}", placed.text(), role, names(now)));
      }
    }
    for (const PlacedDevice& placed : added) {
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

Result<Places> read_list(const char* key,
                         const google::protobuf::RepeatedPtrField<std::string>& entries,
                         const std::string& own_node) {
  Places places;
  if (entries.empty()) return places;
  return read_devices(key, {entries.begin(), entries.end()}, own_node);
}

}  // namespace

Result<PlacementChange> read_change(const proto::ScaleRun& order, const std::string& own_node) {
  PlacementChange change;
  const std::tuple<Places*, const char*, const google::protobuf::RepeatedPtrField<std::string>*>
      lists[] = {{&change.add_targets, "targets", &order.add_targets()},
                 {&change.remove_targets, "targets", &order.remove_targets()},
                 {&change.add_trainers, "trainers", &order.add_trainers()},
                 {&change.remove_trainers, "trainers", &order.remove_trainers()}};
  for (const auto& [places, key, entries] : lists) {
    PERCHERON_ASSIGN_OR_RETURN(*places, read_list(key, *entries, own_node));
  }
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
  PERCHERON_RETURN_IF_ERROR(check_trainer_nodes(run, next));
  PERCHERON_RETURN_IF_ERROR(check_fixed(now, next, run));
  return next;
}

void set_placement(const ClusterPlacement& placement, proto::Run& run) {
  proto::Placement& written = *run.mutable_placement();
  written.clear_targets();
  written.clear_trainers();
  written.clear_devices();
  for (const PlacedDevice& placed : placement.targets) written.add_targets(placed.text());
  for (const PlacedDevice& placed : placement.trainers) written.add_trainers(placed.text());
}

// --- numbers -------------------------------------------------------------------------------------

WorkerPlaces::WorkerPlaces(const ClusterPlacement& placement) {
  for (const std::string& node : placement.nodes()) know(node);
  for (const PlacedDevice& placed : placement.targets) targets_[next_target_++] = placed;
  for (const PlacedDevice& placed : placement.trainers) trainers_[next_trainer_++] = placed;
}

void WorkerPlaces::know(const std::string& node) {
  if (node_number(node) < 0) nodes_.push_back(node);
}

std::optional<PlacedDevice> WorkerPlaces::place_of(WorkerKind kind, int number) const {
  const Numbers& numbers = kind == WorkerKind::kTarget ? targets_ : trainers_;
  const auto known = numbers.find(number);
  return known == numbers.end() ? std::nullopt : std::optional(known->second);
}

int WorkerPlaces::node_number(const std::string& node) const {
  const auto known = std::find(nodes_.begin(), nodes_.end(), node);
  return known == nodes_.end() ? -1 : static_cast<int>(known - nodes_.begin());
}

ClusterPlacement WorkerPlaces::placement() const {
  ClusterPlacement placement;
  for (const auto& [number, placed] : targets_) placement.targets.push_back(placed);
  for (const auto& [number, placed] : trainers_) placement.trainers.push_back(placed);
  return placement;
}

Result<WorkerPlaces::Plan> WorkerPlaces::plan(const ClusterPlacement& next) const {
  Devices now;  // what each device does
  for (const auto& [number, placed] : targets_) now[placed].targets.push_back(number);
  for (const auto& [number, placed] : trainers_) now[placed].trainers.push_back(number);
  Plan plan;
  std::set<PlacedDevice> again;  // take on a role beside, or instead of, what they have
  const auto compare = [&](const Places& wanted, std::vector<int> Roles::*role) {
    for (const PlacedDevice& placed : wanted) {
      const auto known = now.find(placed);
      if (known != now.end() && (known->second.*role).empty()) again.insert(placed);
    }
  };
  compare(next.targets, &Roles::targets);
  compare(next.trainers, &Roles::trainers);
  for (const auto& [placed, roles] : now) {
    const bool target = contains(next.targets, placed), trainer = contains(next.trainers, placed);
    const bool anew = again.count(placed) != 0;
    if (!roles.targets.empty() && (anew || !target)) plan.retired[placed].targets = roles.targets;
    if (!roles.trainers.empty() && (anew || !trainer)) {
      plan.retired[placed].trainers = roles.trainers;
    }
    if (anew || (!target && !trainer)) plan.ended.insert(placed);
  }
  int target = next_target_, trainer = next_trainer_;
  const auto number = [&](bool moved) {
    Devices& devices = moved ? plan.moved : plan.fresh;
    const auto is_new = [&](const PlacedDevice& placed) {
      return moved ? again.count(placed) != 0 : now.count(placed) == 0;
    };
    for (const PlacedDevice& placed : next.targets) {
      if (is_new(placed)) devices[placed].targets.push_back(target++);
    }
    for (const PlacedDevice& placed : next.trainers) {
      if (is_new(placed)) devices[placed].trainers.push_back(trainer++);
    }
  };
  number(false);
  number(true);
  const auto stays = [&](const Numbers& numbers, std::vector<int> Roles::*role) {
    size_t leaving = 0, coming = 0;
    for (const auto& [placed, roles] : plan.retired) leaving += (roles.*role).size();
    for (const auto& [placed, roles] : plan.fresh) coming += (roles.*role).size();
    return numbers.size() + coming > leaving;
  };
  for (const auto& [kind, there] : {std::pair("target", stays(targets_, &Roles::targets)),
                                    std::pair("trainer", stays(trainers_, &Roles::trainers))}) {
    if (there) continue;
    return failed_precondition(
        fmt::format("no {} would be there while {} changes its role: add one on another device "
                    "first, or pause the run with --release-devices",
                    kind, again.begin()->text()));
  }
  return plan;
}

void WorkerPlaces::add(const Devices& devices) {
  for (const auto& [placed, roles] : devices) {
    know(placed.node);
    for (int number : roles.targets) targets_[number] = placed;
    for (int number : roles.trainers) trainers_[number] = placed;
    if (!roles.targets.empty()) next_target_ = std::max(next_target_, roles.targets.back() + 1);
    if (!roles.trainers.empty()) {
      next_trainer_ = std::max(next_trainer_, roles.trainers.back() + 1);
    }
  }
}

void WorkerPlaces::retire(const Devices& devices) {
  for (const auto& [placed, roles] : devices) {
    for (int number : roles.targets) targets_.erase(number);
    for (int number : roles.trainers) trainers_.erase(number);
  }
}

}  // namespace percheron
