#pragma once

#include <map>
#include <mutex>

#include "actors/feature_sources.h"
#include "actors/service/placement.h"
#include "proto/control.pb.h"

namespace percheron {

/// What a worker has counted so far, as it tells its supervisor.
proto::WorkerCounts counts_of(const FeatureSources& sources, int attempt);

/// The sums over all workers that a run has had, of which only the last words of each count.
/// Thread-safe.
class WorkerCountSums {
 public:
  void take(const PlacedDevices& from, const proto::WorkerCounts& counts);
  FeatureSources sums() const;

 private:
  mutable std::mutex mutex_;
  std::map<PlacedDevices, proto::WorkerCounts> last_;
  FeatureSources ended_;  // of processes that were started again since
};

}  // namespace percheron
