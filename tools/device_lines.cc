#include "tools/device_lines.h"

#include <fmt/format.h>

#include "base/units.h"
#include "kernels/device.h"

namespace percheron {
namespace {

/// More cards than a machine has.
constexpr int kCudaDevicesMax = 64;

std::string device_line(const DeviceInfo& info) {
  return fmt::format("{}: {}, {} thread(s), {}{}", to_string(info.id), info.description,
                     info.threads, format_bytes(info.memory_bytes),
                     info.native_bf16 ? "" : ", bf16 is a storage type");
}

struct FoundDevices {
  std::vector<DeviceInfo> devices;
  std::vector<std::string> absent;  // why there is no cpu:0, or no GPU
};

FoundDevices find_devices() {
  FoundDevices found;
  for (int i = -1; i < kCudaDevicesMax; ++i) {
    const DeviceId id = i < 0 ? DeviceId{DeviceKind::kCpu, 0} : DeviceId{DeviceKind::kCuda, i};
    const Result<std::unique_ptr<Device>> device = open_device(id, {});
    if (device.ok()) {
      found.devices.push_back((*device)->info());
      continue;
    }
    if (i <= 0) found.absent.push_back(device.status().message());
    if (i >= 0) break;
  }
  return found;
}

/// What is known, and the names of what is not.
struct Parts {
  std::string known, unknown;

  void add(bool is_known, const std::string& text, const char* name) {
    if (is_known) {
      known += ", " + text;
    } else {
      unknown += unknown.empty() ? name : std::string(", ") + name;
    }
  }
};

}  // namespace

std::string card_line(size_t index, const Card& card, const Result<CardHealth>& health) {
  const std::string name =
      card.uuid.empty() ? card.name : fmt::format("{} ({})", card.name, card.uuid);
  if (!health.ok()) return fmt::format("card {}: {}: {}", index, name, health.status().message());
  Parts parts;
  parts.add(health->utilization.has_value(),
            fmt::format("{:.0f} % busy", 100 * health->utilization.value_or(0)), "utilization");
  parts.add(health->memory_used_bytes && health->memory_bytes,
            fmt::format("{} of {} in use", format_bytes(health->memory_used_bytes.value_or(0)),
                        format_bytes(health->memory_bytes.value_or(0))),
            "memory");
  parts.add(health->power_watts.has_value(),
            fmt::format("{:.0f} W", health->power_watts.value_or(0)), "power");
  parts.add(health->power_limit_watts.has_value(),
            fmt::format("limit {:.0f} W", health->power_limit_watts.value_or(0)), "power limit");
  parts.add(health->temperature_celsius.has_value(),
            fmt::format("{} °C", health->temperature_celsius.value_or(0)), "temperature");
  parts.add(health->ecc_corrected && health->ecc_uncorrected,
            fmt::format("{} corrected and {} uncorrected ECC errors",
                        health->ecc_corrected.value_or(0), health->ecc_uncorrected.value_or(0)),
            "ECC errors");
  const uint64_t xid = health->last_xid.value_or(0);
  parts.add(health->last_xid.has_value(), xid == 0 ? "no Xid" : fmt::format("Xid {}", xid), "Xid");
  return fmt::format("card {}: {}{}{}", index, name, parts.known,
                     parts.unknown.empty() ? "" : "; not told: " + parts.unknown);
}

nlohmann::ordered_json devices_json() {
  const FoundDevices found = find_devices();
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (const DeviceInfo& info : found.devices) {
    devices.push_back({{"device", to_string(info.id)},
                       {"description", info.description},
                       {"threads", info.threads},
                       {"memory_bytes", info.memory_bytes}});
  }
  return {{"devices", devices}, {"absent", found.absent}};
}

std::vector<std::string> device_lines(const Result<std::unique_ptr<HealthMonitor>>& monitor) {
  const FoundDevices found = find_devices();
  std::vector<std::string> lines;
  for (const DeviceInfo& info : found.devices) lines.push_back(device_line(info));
  lines.insert(lines.end(), found.absent.begin(), found.absent.end());
  if (!monitor.ok()) {
    lines.push_back(monitor.status().message());
    return lines;
  }
  HealthMonitor& cards = **monitor;
  for (size_t i = 0; i < cards.cards().size(); ++i) {
    lines.push_back(card_line(i, cards.cards()[i], cards.read(i)));
  }
  return lines;
}

}  // namespace percheron
