#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/micro_batch.h"
#include "data/transport/bulk_server.h"
#include "data/transport/shared_region.h"
#include "proto/control.pb.h"

namespace percheron {

/// The features that a node keeps for its runs, in shared memory that outlives the workers which
/// made them. Trainers of this node get the memory itself, other nodes pull it. Once a region was
/// released and its last reader is gone, whose it is may write to it again. Thread-safe.
class FeatureRegions {
 public:
  using Region = BulkRegions::Region;

  /// A region that a worker made, by the worker's own number for it.
  struct Freed {
    pid_t maker = 0;
    uint64_t region = 0;
  };
  /// Of features that workers of this node published so far.
  struct Counts {
    int64_t in_new_memory = 0;
    int64_t in_used_memory = 0;
  };

  /// Keeps what the worker `maker` made, in place of an older generation of the same micro-batch.
  /// kDataLoss for memory that is not what `what` says.
  Status keep(const std::string& run, const proto::PublishFeatures& what, pid_t maker,
              FileDescriptor fd);
  /// A descriptor of the region for `reader`, a process of this node, until given_back() with the
  /// same `request`. kNotFound when it is not here.
  Result<FileDescriptor> lend(const std::string& run, const proto::FeatureKey& key, pid_t reader,
                              uint64_t request);
  /// As above, of what was pulled from another node.
  Result<FileDescriptor> lend(Region pulled, pid_t reader, uint64_t request);
  /// The process has read what it was lent; nothing where it was lent nothing.
  void given_back(pid_t reader, uint64_t request);
  /// Nothing comes from the process any more.
  void process_ended(pid_t process);

  /// Forgets micro-batches [first, first + count) of an epoch.
  void release(const std::string& run, const proto::ReleaseFeatures& what);
  /// Forgets all of a run.
  void release_run(const std::string& run);
  /// The regions of workers that nobody needs any more, each told once.
  std::vector<Freed> take_freed() { return freed_->take(); }

  /// What other nodes may pull.
  const BulkRegions& offered() const { return offered_; }
  /// Of features that are kept and not released.
  uint64_t bytes() const;
  Counts counts() const;

  /// The slot under which the features of a micro-batch are offered.
  static uint64_t slot(const std::string& run, MicroBatchId id);

 private:
  // Outlives this object as long as anybody holds a region.
  class FreedList {
   public:
    void add(Freed freed);
    std::vector<Freed> take();

   private:
    std::mutex mutex_;
    std::vector<Freed> freed_;
  };
  struct Made;
  struct Kept {
    int64_t generation = 0;
    uint64_t bytes = 0;
    Region region;
  };
  using Key = std::pair<std::string, MicroBatchId>;

  void drop(std::map<Key, Kept>::iterator kept);

  const std::shared_ptr<FreedList> freed_ = std::make_shared<FreedList>();
  mutable std::mutex mutex_;
  std::map<Key, Kept> kept_;
  std::map<std::pair<pid_t, uint64_t>, Region> lent_;  // by reader and request
  uint64_t bytes_ = 0;
  Counts counts_;
  BulkRegions offered_;
};

}  // namespace percheron
