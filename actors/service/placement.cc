#include "actors/service/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <string_view>

namespace percheron {
namespace {

constexpr int kDevicesMax = 4096;  // of one entry

Status wrong_entry(const char* key, const std::string& value, const std::string& why) {
  return invalid_argument(
      fmt::format("placement.{}: '{}' {}; write \"node/cuda:0\", \"node/cuda:0-3\" or \"cpu:0\"",
                  key, value, why));
}

// The devices of an entry, each by itself, or in one group where it is written as one.
Result<std::vector<PlacedDevices>> read_entry(const char* key, const std::string& value,
                                              const std::string& own_node) {
  std::string_view rest = value;
  std::string node = own_node;
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    node = rest.substr(0, slash);
    rest.remove_prefix(slash + 1);
    if (node.empty()) return wrong_entry(key, value, "names no node before '/'");
  }
  if (rest.find('+') != std::string_view::npos) {
    const Result<std::vector<DeviceId>> group = parse_device_group(std::string(rest));
    if (!group.ok()) return wrong_entry(key, value, "is no group like \"node/cuda:0+1\"");
    return std::vector{PlacedDevices{node, *group}};
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
  std::vector<PlacedDevices> devices;
  for (int index = device->index; index <= last; ++index) {
    devices.push_back({node, {DeviceId{device->kind, index}}});
  }
  return devices;
}

/// The entry after it may belong to a target with it.
Status check_one_group(const char* key, const PlacedDevices& group, const PlacedDevices& next,
                       size_t size) {
  if (next.node != group.node) {
    return invalid_argument(fmt::format(
        "placement.{} lets {} and {} hold one target (placement.tensor_parallel: {}), and a "
        "target's devices must be of one node: name {} of a node one after the other",
        key, group.text(), next.text(), size, size));
  }
  if (next.devices.front().kind != group.devices.front().kind) {
    return invalid_argument(
        fmt::format("placement.{} lets {} and {} hold one target: they must be of one kind", key,
                    group.text(), next.text()));
  }
  return ok_status();
}

Result<std::vector<PlacedDevices>> in_groups(const char* key,
                                             const std::vector<PlacedDevices>& devices,
                                             size_t size) {
  std::vector<PlacedDevices> groups;
  for (const PlacedDevices& placed : devices) {
    const bool fits = placed.devices.size() == 1 || placed.devices.size() == size;
    const bool begun = !groups.empty() && groups.back().devices.size() < size;
    if (!fits || (begun && placed.devices.size() > 1)) {
      return invalid_argument(
          size == 1 ? fmt::format("placement.{}: '{}' is several devices, and one is wanted", key,
                                  placed.text())
                    : fmt::format("placement.{}: '{}' is no target on {} devices "
                                  "(placement.tensor_parallel)",
                                  key, placed.text(), size));
    }
    if (!begun) {
      groups.push_back(placed);
      continue;
    }
    PERCHERON_RETURN_IF_ERROR(check_one_group(key, groups.back(), placed, size));
    groups.back().devices.push_back(placed.devices.front());
  }
  if (groups.empty() || groups.back().devices.size() == size) return groups;
  return invalid_argument(
      fmt::format("placement.tensor_parallel is {}, and placement.{} names only {} for a target: "
                  "name {} of one node, one after the other, for each",
                  size, key, groups.back().text(), size));
}

template <class Entries>
Result<std::vector<PlacedDevices>> read_entries(const char* key, const Entries& entries,
                                                const std::string& own_node, size_t size) {
  if (entries.empty()) return read_devices(key, {"cpu:0"}, own_node, size);
  return read_devices(key, {entries.begin(), entries.end()}, own_node, size);
}

}  // namespace

bool PlacedDevices::overlaps(const PlacedDevices& other) const {
  return node == other.node && std::ranges::any_of(devices, [&](DeviceId id) {
           return std::ranges::find(other.devices, id) != other.devices.end();
         });
}

std::vector<std::string> PlacedDevices::device_texts() const {
  std::vector<std::string> texts;
  for (const DeviceId id : devices) texts.push_back(node + "/" + to_string(id));
  return texts;
}

Result<std::vector<PlacedDevices>> read_devices(const char* key,
                                                const std::vector<std::string>& entries,
                                                const std::string& own_node, size_t size) {
  std::vector<PlacedDevices> devices;
  for (const std::string& value : entries) {
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<PlacedDevices> some,
                               read_entry(key, value, own_node));
    devices.insert(devices.end(), some.begin(), some.end());
  }
  return in_groups(key, devices, size);
}

Status check_groups(const std::vector<PlacedDevices>& targets) {
  std::set<std::string> seen;
  for (const PlacedDevices& placed : targets) {
    if (placed.devices.size() == 1) continue;  // Several targets may share a device.
    for (const std::string& device : placed.device_texts()) {
      if (seen.insert(device).second) continue;
      return invalid_argument(
          fmt::format("placement.targets names {} twice: with placement.tensor_parallel a device "
                      "holds a part of one target",
                      device));
    }
  }
  return ok_status();
}

Status check_trainer_nodes(const proto::Run& run, const ClusterPlacement& placement) {
  std::set<std::string> nodes;
  for (const PlacedDevices& placed : placement.trainers) nodes.insert(placed.node);
  if (nodes.size() <= 1 || run.cluster().trusted_network()) return ok_status();
  return invalid_argument(
      "placement.trainers are on several nodes, and what they sum is not encrypted: set "
      "cluster.collective_interface to a network that nobody else reaches, and "
      "cluster.trusted_network: true");
}

std::string ClusterPlacement::Roles::text() const {
  std::vector<std::string> roles;
  for (int number : targets) roles.push_back(fmt::format("target {}", number));
  for (const auto& [number, device] : trainers) roles.push_back(fmt::format("trainer {}", number));
  return fmt::format("{}", fmt::join(roles, ", "));
}

const PlacedDevices& ClusterPlacement::process_of(const PlacedDevices& trainer) const {
  const auto host = std::ranges::find_if(
      targets, [&](const PlacedDevices& target) { return target.overlaps(trainer); });
  return host == targets.end() ? trainer : *host;
}

std::map<PlacedDevices, ClusterPlacement::Roles> ClusterPlacement::workers() const {
  std::map<PlacedDevices, Roles> workers;
  for (size_t i = 0; i < targets.size(); ++i) {
    workers[targets[i]].targets.push_back(static_cast<int>(i));
  }
  for (size_t i = 0; i < trainers.size(); ++i) {
    workers[process_of(trainers[i])].trainers[static_cast<int>(i)] = trainers[i].devices.front();
  }
  return workers;
}

std::vector<std::string> ClusterPlacement::nodes() const {
  std::vector<std::string> nodes;
  for (const auto* devices : {&targets, &trainers}) {
    for (const PlacedDevices& placed : *devices) {
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
    if (placed.node != node) continue;
    std::ranges::copy_if(placed.devices, std::inserter(devices, devices.end()),
                         [](DeviceId id) { return id.kind == DeviceKind::kCpu; });
  }
  return static_cast<int>(devices.size());
}

Result<ClusterPlacement> read_placement(const proto::Run& run, const std::string& own_node) {
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
  const auto size = static_cast<size_t>(run.placement().tensor_parallel());
  ClusterPlacement placement;
  if (!run.placement().devices().empty()) {
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<PlacedDevices> devices,
                               read_entries("devices", run.placement().devices(), own_node, 1));
    std::vector<PlacedDevices> targets;
    PERCHERON_RETURN_IF_ERROR(split_devices(devices, size, targets, placement.trainers));
    PERCHERON_ASSIGN_OR_RETURN(placement.targets, in_groups("devices", targets, size));
  } else {
    PERCHERON_ASSIGN_OR_RETURN(placement.targets,
                               read_entries("targets", run.placement().targets(), own_node, size));
    PERCHERON_ASSIGN_OR_RETURN(placement.trainers,
                               read_entries("trainers", run.placement().trainers(), own_node, 1));
  }
  PERCHERON_RETURN_IF_ERROR(check_groups(placement.targets));
  PERCHERON_RETURN_IF_ERROR(check_trainer_nodes(run, placement));
  return placement;
}

proto::Run without_nodes(const proto::Run& run, const ClusterPlacement& placement) {
  proto::Run plain = run;
  plain.mutable_placement()->clear_devices();
  plain.mutable_placement()->clear_auto_balance();
  plain.mutable_placement()->clear_targets();
  plain.mutable_placement()->clear_trainers();
  plain.mutable_placement()->clear_tensor_parallel();
  for (const PlacedDevices& placed : placement.targets) {
    plain.mutable_placement()->add_targets(to_string(placed.devices.front()));
  }
  for (const PlacedDevices& placed : placement.trainers) {
    plain.mutable_placement()->add_trainers(placed.device_text());
  }
  return plain;
}

}  // namespace percheron
