#include "actors/held_out_features.h"

#include <fmt/format.h>

#include <utility>

namespace percheron {

Status HeldOutFeatures::add(FeaturesPtr features) {
  const std::lock_guard lock(mutex_);
  const auto known = features_.find(features->batch.id.index);
  const uint64_t replaced = known == features_.end() ? 0 : known->second->bytes();
  const uint64_t bytes = bytes_ - replaced + features->bytes();
  if (bytes > bytes_max_) {
    return resource_exhausted(fmt::format(
        "held-out features take {} bytes, evaluate.feature_bytes_max is {}: raise it or "
        "lower evaluate.conversations_max",
        bytes, bytes_max_));
  }
  bytes_ = bytes;
  features_[features->batch.id.index] = std::move(features);
  return ok_status();
}

std::vector<FeaturesPtr> HeldOutFeatures::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<FeaturesPtr> all;
  for (const auto& [index, features] : features_) all.push_back(features);
  return all;
}

uint64_t HeldOutFeatures::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace percheron
