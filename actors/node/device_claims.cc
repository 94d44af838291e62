#include "actors/node/device_claims.h"

#include <fmt/format.h>

#include <algorithm>

namespace percheron {

std::vector<std::string> device_names(const std::vector<DeviceId>& devices) {
  std::vector<std::string> names;
  for (const DeviceId id : devices) names.push_back(to_string(id));
  return names;
}

Status DeviceClaims::check(const std::string& run, const std::vector<std::string>& devices,
                           double now) const {
  for (const std::string& device : devices) {
    const auto claim = claims_.find(device);
    if (claim == claims_.end() || claim->second.run == run) continue;
    if (claim->second.reserved_until == 0) {
      return failed_precondition(fmt::format("{} belongs to run {}", device, claim->second.run));
    }
    if (claim->second.reserved_until <= now) continue;
    return failed_precondition(fmt::format(
        "{} is reserved for run {}, by an order that is under way", device, claim->second.run));
  }
  return ok_status();
}

Status DeviceClaims::reserve(const std::string& run, const std::string& node,
                             const std::vector<std::string>& devices, double now) {
  PERCHERON_RETURN_IF_ERROR(check(run, devices, now));
  for (const std::string& device : devices) {
    Claim& claim = claims_[device];
    if (claim.run == run && claim.reserved_until == 0) continue;  // It has it already.
    claim = {run, node, now + kReservedSeconds};
  }
  return ok_status();
}

void DeviceClaims::release_reserved(const std::string& run,
                                    const std::vector<std::string>& devices) {
  for (const std::string& device : devices) {
    const auto claim = claims_.find(device);
    if (claim == claims_.end() || claim->second.run != run) continue;
    if (claim->second.reserved_until > 0) claims_.erase(claim);
  }
}

Status DeviceClaims::take(const std::string& run, const std::string& node,
                          const std::vector<std::string>& devices, double now) {
  PERCHERON_RETURN_IF_ERROR(check(run, devices, now));
  for (const std::string& device : devices) claims_[device] = {run, node, 0};
  return ok_status();
}

void DeviceClaims::release(const std::string& run, const std::vector<std::string>& devices) {
  for (const std::string& device : devices) {
    const auto claim = claims_.find(device);
    if (claim != claims_.end() && claim->second.run == run) claims_.erase(claim);
  }
}

void DeviceClaims::release_all(const std::string& run, const std::string& node) {
  std::erase_if(claims_, [&](const auto& entry) {
    return entry.second.run == run && entry.second.node == node;
  });
}

void DeviceClaims::node_lost(const std::string& node) {
  std::erase_if(claims_, [&](const auto& entry) { return entry.second.node == node; });
}

std::map<std::string, std::string> DeviceClaims::owners(double now) const {
  std::map<std::string, std::string> owners;
  for (const auto& [device, claim] : claims_) {
    if (claim.reserved_until == 0 || claim.reserved_until > now) owners[device] = claim.run;
  }
  return owners;
}

}  // namespace percheron
