#include "actors/service/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>

#include "actors/placement_plan.h"

namespace percheron {
namespace {

constexpr int kDevicesMax = 4096;  // of one entry

Status wrong_entry(const char* key, const std::string& value, const std::string& why) {
  return invalid_argument(
      fmt::format("placement.{}: '{}' {}; write \"node/cuda:0\", \"node/cuda:0-3\" or \"cpu:0\"",
                  key, value, why));
}

Result<std::vector<PlacedDevice>> read_entry(const char* key, const std::string& value,
                                             const std::string& own_node) {
  std::string_view rest = value;
  std::string node = own_node;
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    node = rest.substr(0, slash);
    rest.remove_prefix(slash + 1);
    if (node.empty()) return wrong_entry(key, value, "names no node before '/'");
  }
  int last = -1;
  std::string first(rest);
  if (const size_t dash = rest.find('-'); dash != std::string_view::npos) {
    const std::string_view end = rest.substr(dash + 1);
    const auto [stop, error] = std::from_chars(end.data(), end.data() + end.size(), last);
    if (error != std::errc() || stop != end.data() + end.size() || end.empty()) {
      return wrong_entry(key, value, "has no number after '-'");
    }
    first = rest.substr(0, dash);
  }
  const Result<DeviceId> device = parse_device_id(first);
  if (!device.ok()) return wrong_entry(key, value, "is no device");
  if (last < 0) last = device->index;
  if (last < device->index || last - device->index >= kDevicesMax) {
    return wrong_entry(key, value, "is an empty or too long range");
  }
  std::vector<PlacedDevice> devices;
  for (int index = device->index; index <= last; ++index) {
    devices.push_back({node, DeviceId{device->kind, index}});
  }
  return devices;
}

template <class Entries>
Result<std::vector<PlacedDevice>> read_entries(const char* key, const Entries& entries,
                                               const std::string& own_node) {
  if (entries.empty()) return std::vector{PlacedDevice{own_node, DeviceId{DeviceKind::kCpu, 0}}};
  return read_devices(key, {entries.begin(), entries.end()}, own_node);
}

}  // namespace

Result<std::vector<PlacedDevice>> read_devices(const char* key,
                                               const std::vector<std::string>& entries,
                                               const std::string& own_node) {
  std::vector<PlacedDevice> devices;
  for (const std::string& value : entries) {
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<PlacedDevice> some,
                               read_entry(key, value, own_node));
    devices.insert(devices.end(), some.begin(), some.end());
  }
  return devices;
}

Status check_trainer_nodes(const proto::Run& run, const ClusterPlacement& placement) {
  std::set<std::string> nodes;
  for (const PlacedDevice& placed : placement.trainers) nodes.insert(placed.node);
  if (nodes.size() <= 1 || run.cluster().trusted_network()) return ok_status();
  return invalid_argument(
      "placement.trainers are on several nodes, and what they sum is not encrypted: set "
      "cluster.collective_interface to a network that nobody else reaches, and "
      "cluster.trusted_network: true");
}

std::string ClusterPlacement::Roles::text() const {
  std::vector<std::string> roles;
  for (int number : targets) roles.push_back(fmt::format("target {}", number));
  for (int number : trainers) roles.push_back(fmt::format("trainer {}", number));
  return fmt::format("{}", fmt::join(roles, ", "));
}

std::map<PlacedDevice, ClusterPlacement::Roles> ClusterPlacement::workers() const {
  std::map<PlacedDevice, Roles> workers;
  for (size_t i = 0; i < targets.size(); ++i) {
    workers[targets[i]].targets.push_back(static_cast<int>(i));
  }
  for (size_t i = 0; i < trainers.size(); ++i) {
    workers[trainers[i]].trainers.push_back(static_cast<int>(i));
  }
  return workers;
}

std::vector<std::string> ClusterPlacement::nodes() const {
  std::vector<std::string> nodes;
  for (const auto* devices : {&targets, &trainers}) {
    for (const PlacedDevice& placed : *devices) {
      if (std::find(nodes.begin(), nodes.end(), placed.node) == nodes.end()) {
        nodes.push_back(placed.node);
      }
    }
  }
  return nodes;
}

int ClusterPlacement::cpu_devices(const std::string& node) const {
  std::set<DeviceId> devices;
  for (const auto& [placed, roles] : workers()) {
    if (placed.node == node && placed.device.kind == DeviceKind::kCpu) {
      devices.insert(placed.device);
    }
  }
  return static_cast<int>(devices.size());
}

Result<ClusterPlacement> read_placement(const proto::Run& run, const std::string& own_node) {
  const int64_t devices_per_target = run.placement().tensor_parallel();
  if (devices_per_target != 1) {
    return invalid_argument(fmt::format(
        "placement.tensor_parallel is {}, and a service holds each target on one device: "
        "leave it at 1, or run `percheron train`",
        devices_per_target));
  }
  if (run.cluster().lease_seconds() < 0) {
    return invalid_argument(fmt::format(
        "cluster.lease_seconds is {}: give the seconds that a worker may be at one micro-batch, "
        "or 0 for as long as it likes",
        run.cluster().lease_seconds()));
  }
  PERCHERON_RETURN_IF_ERROR(check_devices(run.placement()));
  if (!(run.placement().balance_settle_seconds() >= 0)) {
    return invalid_argument(fmt::format(
        "placement.balance_settle_seconds is {}: give the seconds after a change of the workers "
        "until what they do is measured again",
        run.placement().balance_settle_seconds()));
  }
  ClusterPlacement placement;
  if (!run.placement().devices().empty()) {
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<PlacedDevice> devices,
                               read_entries("devices", run.placement().devices(), own_node));
    split_devices(devices, placement.targets, placement.trainers);
  } else {
    PERCHERON_ASSIGN_OR_RETURN(placement.targets,
                               read_entries("targets", run.placement().targets(), own_node));
    PERCHERON_ASSIGN_OR_RETURN(placement.trainers,
                               read_entries("trainers", run.placement().trainers(), own_node));
  }
  PERCHERON_RETURN_IF_ERROR(check_trainer_nodes(run, placement));
  return placement;
}

proto::Run without_nodes(const proto::Run& run, const ClusterPlacement& placement) {
  proto::Run plain = run;
  plain.mutable_placement()->clear_devices();
  plain.mutable_placement()->clear_auto_balance();
  plain.mutable_placement()->clear_targets();
  plain.mutable_placement()->clear_trainers();
  for (const PlacedDevice& placed : placement.targets) {
    plain.mutable_placement()->add_targets(to_string(placed.device));
  }
  for (const PlacedDevice& placed : placement.trainers) {
    plain.mutable_placement()->add_trainers(to_string(placed.device));
  }
  return plain;
}

}  // namespace percheron
