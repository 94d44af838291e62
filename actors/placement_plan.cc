#include "actors/placement_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <thread>

namespace percheron {
namespace {

constexpr int64_t kDevicesPerTargetMax = 1024;

Result<std::vector<DeviceId>> parse_devices(
    const char* key, const google::protobuf::RepeatedPtrField<std::string>& names) {
  std::vector<DeviceId> ids;
  for (const std::string& name : names) {
    Result<DeviceId> id = parse_device_id(name);
    if (!id.ok()) return id.status().with_context(key);
    if (id->kind == DeviceKind::kPlanning) {
      return invalid_argument(fmt::format("{} names {}, which only counts memory", key, name));
    }
    ids.push_back(*id);
  }
  if (ids.empty()) ids.push_back({DeviceKind::kCpu, 0});
  return ids;
}

Status resolve_tensor_parallel(const proto::Placement& given, PlacementPlan& plan) {
  const int64_t size = given.tensor_parallel();
  const auto devices = static_cast<int64_t>(plan.targets.size());
  if (devices % size != 0) {
    return invalid_argument(fmt::format(
        "placement.tensor_parallel is {}, but placement.targets names {} devices: name {} for each "
        "target",
        size, devices, size));
  }
  plan.tensor_parallel = static_cast<int>(size);
  if (size == 1) return ok_status();
  for (const std::vector<DeviceId>& group : plan.target_groups()) {
    for (const DeviceId id : group) {
      if (id.kind != group.front().kind) {
        return invalid_argument(fmt::format(
            "placement.targets lets {} and {} hold one target: they must be of one kind",
            to_string(group.front()), to_string(id)));
      }
      // A device that waits for the others of its group can't be one of them, or serve another.
      if (std::count(plan.targets.begin(), plan.targets.end(), id) > 1) {
        return invalid_argument(
            fmt::format("placement.targets names {} twice: with placement.tensor_parallel a device "
                        "holds a part of one target",
                        to_string(id)));
      }
    }
  }
  return ok_status();
}

}  // namespace

std::vector<DeviceId> PlacementPlan::devices() const {
  std::set<DeviceId> all(targets.begin(), targets.end());
  all.insert(trainers.begin(), trainers.end());
  return {all.begin(), all.end()};
}

std::string to_string(const std::vector<DeviceId>& group) {
  std::string names;
  for (const DeviceId id : group) {
    if (names.empty()) {
      names = to_string(id);
    } else {
      names += "+" + (id.kind == group.front().kind ? std::to_string(id.index) : to_string(id));
    }
  }
  return names;
}

Result<std::vector<DeviceId>> parse_device_group(const std::string& text) {
  size_t end = std::min(text.find('+'), text.size());
  PERCHERON_ASSIGN_OR_RETURN(const DeviceId first, parse_device_id(text.substr(0, end)));
  std::vector<DeviceId> group = {first};
  while (end < text.size()) {
    const char* const begin = text.data() + end + 1;
    end = std::min(text.find('+', end + 1), text.size());
    DeviceId next{first.kind, -1};
    const auto [stop, error] = std::from_chars(begin, text.data() + end, next.index);
    if (error != std::errc() || stop != text.data() + end || next.index < 0) {
      return invalid_argument(
          fmt::format("'{}' has no number after '+'; write KIND:INDEX+INDEX", text));
    }
    group.push_back(next);
  }
  return group;
}

std::vector<std::vector<DeviceId>> PlacementPlan::target_groups() const {
  std::vector<std::vector<DeviceId>> groups;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (i % static_cast<size_t>(tensor_parallel) == 0) groups.emplace_back();
    groups.back().push_back(targets[i]);
  }
  return groups;
}

Status check_devices(const proto::Placement& given) {
  if (given.tensor_parallel() < 1 || given.tensor_parallel() > kDevicesPerTargetMax) {
    return invalid_argument(
        fmt::format("placement.tensor_parallel is {}: it must be at least 1, and at most {}",
                    given.tensor_parallel(), kDevicesPerTargetMax));
  }
  if (given.devices().empty() || (given.targets().empty() && given.trainers().empty())) {
    return ok_status();
  }
  return invalid_argument(
      "placement.devices stands for placement.targets and placement.trainers: give the one or the "
      "others");
}

Status check_split(size_t devices, size_t devices_per_target) {
  const size_t targets =
      ((devices + 1) / 2 + devices_per_target - 1) / devices_per_target * devices_per_target;
  if (targets < devices || (devices == 1 && devices_per_target == 1)) return ok_status();
  return invalid_argument(fmt::format(
      "placement.devices names {} and placement.tensor_parallel is {}, which leaves none for a "
      "trainer: name at least {}, or placement.targets and placement.trainers, which may share "
      "devices",
      devices, devices_per_target, devices_per_target + 1));
}

Result<PlacementPlan> resolve_placement(const proto::Placement& given) {
  PERCHERON_RETURN_IF_ERROR(check_devices(given));
  if (given.auto_balance()) {
    return invalid_argument(
        "placement.auto_balance: only a service gives devices other roles while a run goes on; "
        "submit the run to a node, or leave it out");
  }
  PlacementPlan plan;
  plan.graphs = given.cuda_graphs() != proto::Placement::OFF;
  if (!given.devices().empty()) {
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<DeviceId> devices,
                               parse_devices("placement.devices", given.devices()));
    PERCHERON_RETURN_IF_ERROR(split_devices(devices, static_cast<size_t>(given.tensor_parallel()),
                                            plan.targets, plan.trainers));
  } else {
    PERCHERON_ASSIGN_OR_RETURN(plan.targets, parse_devices("placement.targets", given.targets()));
    PERCHERON_ASSIGN_OR_RETURN(plan.trainers,
                               parse_devices("placement.trainers", given.trainers()));
  }
  PERCHERON_RETURN_IF_ERROR(resolve_tensor_parallel(given, plan));
  const std::vector<DeviceId> devices = plan.devices();
  const auto cpus = std::count_if(devices.begin(), devices.end(),
                                  [](const DeviceId& id) { return id.kind != DeviceKind::kCuda; });
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (given.has_threads()) {
    if (given.threads() < 1 || given.threads() > 4096) {
      return invalid_argument(
          fmt::format("placement.threads is {}: it must be from 1 to 4096", given.threads()));
    }
    plan.threads = static_cast<int>(given.threads());
  } else {
    plan.threads = std::max(1, cores / std::max(1, static_cast<int>(cpus)));
  }
  return plan;
}

}  // namespace percheron
