#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "data/bucket_comparison.h"

namespace percheron {

/// The comparison as tables for people: each model's best buckets with samples, batch size and
/// efficiency, then all bounds with what both models expect, what the planned epoch gives and what
/// was published.
std::string bucket_report(const BucketComparison& comparison);

/// The same for programs.
nlohmann::ordered_json bucket_json(const BucketComparison& comparison);

}  // namespace percheron
