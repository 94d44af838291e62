#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "base/status.h"
#include "data/micro_batch.h"
#include "data/transport/bulk_server.h"
#include "data/transport/shared_region.h"
#include "proto/control.pb.h"

namespace percheron {

/// The features that a node keeps for its runs, in shared memory that outlives the workers which
/// made them. Trainers of this node get the memory itself, other nodes pull it. Thread-safe.
class FeatureRegions {
 public:
  /// Keeps what a target made, in place of an older generation of the same micro-batch.
  /// kDataLoss for memory that is not what `key` says.
  Status keep(const std::string& run, const proto::FeatureKey& key, FileDescriptor fd);
  /// A descriptor of the region, for a process of this node. kNotFound when it is not here.
  Result<FileDescriptor> find(const std::string& run, const proto::FeatureKey& key) const;
  /// Forgets micro-batches [first, first + count) of an epoch.
  void release(const std::string& run, const proto::ReleaseFeatures& what);
  /// Forgets all of a run.
  void release_run(const std::string& run);

  /// What other nodes may pull.
  const BulkRegions& offered() const { return offered_; }
  uint64_t bytes() const;

  /// The slot under which the features of a micro-batch are offered.
  static uint64_t slot(const std::string& run, MicroBatchId id);

 private:
  struct Kept {
    int64_t generation = 0;
    BulkRegions::Region region;
  };
  using Key = std::pair<std::string, MicroBatchId>;

  void drop(std::map<Key, Kept>::iterator kept);

  mutable std::mutex mutex_;
  std::map<Key, Kept> kept_;
  uint64_t bytes_ = 0;
  BulkRegions offered_;
};

}  // namespace percheron
