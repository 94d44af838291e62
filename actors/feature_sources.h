#pragma once

#include <optional>

#include "data/feature_cache.h"
#include "data/offline_features.h"

namespace percheron {

/// Where the samples of a run's features came from, since its processes started.
struct FeatureSources {
  std::optional<OfflineCounters> files;       // where features.from is given
  std::optional<FeatureCacheCounters> cache;  // where there is a cache
};

}  // namespace percheron
