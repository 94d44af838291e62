#include "actors/gradient_reduction.h"

#include <algorithm>
#include <set>

#include "base/units.h"

namespace percheron {

std::vector<std::span<const ReducedTensor>> make_gradient_buckets(
    std::span<const ReducedTensor> tensors, uint64_t bucket_bytes) {
  std::vector<std::span<const ReducedTensor>> buckets;
  size_t begin = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    bytes += tensors[i].x.bytes();
    if (bytes < bucket_bytes && i + 1 < tensors.size()) continue;
    buckets.push_back(tensors.subspan(begin, i + 1 - begin));
    begin = i + 1;
    bytes = 0;
  }
  return buckets;
}

std::string host_sum_reason(const PlacementPlan& placement, Assignment assignment) {
  const std::vector<DeviceId>& trainers = placement.trainers;
  if (trainers.size() < 2) return "there is one trainer";
  const DeviceKind kind = trainers.front().kind;
  if (kind == DeviceKind::kCpu) return "the trainers share the host's memory";
  const std::set<DeviceId> distinct(trainers.begin(), trainers.end());
  if (std::any_of(trainers.begin(), trainers.end(),
                  [kind](DeviceId id) { return id.kind != kind; })) {
    return "the trainers' devices are of several kinds";
  }
  if (distinct.size() < trainers.size()) return "several trainers share a device";
  if (assignment == Assignment::kFixed) {
    return "mailbox.assignment: fixed sums in the trainers' order";
  }
  // Two groups whose members wait for each other in different orders would stand still.
  if (placement.tensor_parallel > 1 &&
      std::any_of(placement.targets.begin(), placement.targets.end(),
                  [&](DeviceId id) { return distinct.count(id) != 0; })) {
    return "a trainer shares its device with a part of a target";
  }
  return "";
}

std::string gradient_sums_text(const std::string& host_reason, uint64_t bucket_bytes) {
  if (!host_reason.empty()) return "summed in host memory: " + host_reason;
  return "summed between the devices, in buckets of " + format_bytes(bucket_bytes) +
         ", while a step's last backward passes go on";
}

}  // namespace percheron
