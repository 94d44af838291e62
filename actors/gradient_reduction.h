#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "actors/run_setup.h"
#include "kernels/device_collective.h"

namespace percheron {

/// Gradients that are summed in one exchange between devices, in bytes, about: large enough to fill
/// the links, small enough that the next one is prepared meanwhile.
inline constexpr uint64_t kGradientBucketBytes = uint64_t{32} << 20;

/// Consecutive tensors in groups that each reach `bucket_bytes` with their last one, the last group
/// perhaps not. Views into `tensors`.
std::vector<std::span<const ReducedTensor>> make_gradient_buckets(
    std::span<const ReducedTensor> tensors, uint64_t bucket_bytes);

/// Why the trainers' gradients are summed in host memory instead of between devices, or empty when
/// they need not be.
std::string host_sum_reason(const PlacementPlan& placement, Assignment assignment);

/// Which way gradients are summed, for people, by host_sum_reason()'s answer.
std::string gradient_sums_text(const std::string& host_reason, uint64_t bucket_bytes);

}  // namespace percheron
