#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "data/features.h"

namespace percheron {

/// The features of the held-out data, computed once and kept for every evaluation, within a limit
/// of their own. Thread-safe.
class HeldOutFeatures {
 public:
  /// evaluate.feature_bytes_max.
  explicit HeldOutFeatures(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  /// kResourceExhausted, and nothing is kept, when they would be more than the limit. Features of a
  /// micro-batch that is here already replace it.
  Status add(FeaturesPtr features);
  /// In the order of their micro-batches.
  std::vector<FeaturesPtr> all() const;
  uint64_t bytes() const;

 private:
  const uint64_t bytes_max_;
  mutable std::mutex mutex_;
  uint64_t bytes_ = 0;
  std::map<int64_t, FeaturesPtr> features_;  // by micro-batch
};

}  // namespace percheron
