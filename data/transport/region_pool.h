#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <string>

#include "base/status.h"
#include "data/transport/shared_region.h"

namespace percheron {

struct RegionPoolCounts {
  int64_t created = 0;      // regions that were new
  int64_t reused = 0;       // that were taken again
  int64_t dropped = 0;      // given back and not kept, or kept and given up for others
  uint64_t idle_bytes = 0;  // of regions that wait to be taken again
};

/// Shared memory that is used again: new memory must be cleared first, which takes longer than
/// filling it. Only who has taken a region can write to it; whoever maps its descriptor reads.
/// Thread-safe.
class RegionPool {
 public:
  /// `name` is for /proc/PID/maps. At most `idle_bytes_max` wait to be taken again.
  RegionPool(std::string name, uint64_t idle_bytes_max)
      : name_(std::move(name)), idle_bytes_max_(idle_bytes_max) {}
  RegionPool(const RegionPool&) = delete;
  RegionPool& operator=(const RegionPool&) = delete;

  /// The smallest region of at least `bytes` > 0 bytes that waits, else a new one, in place of
  /// smaller ones: so the pool's and its takers' regions together are never more than its takers
  /// once had. A region's size is rounded up, so that the next use may be a little larger; what is
  /// behind `bytes` costs nothing until it is written. Errors as SharedRegion::create().
  Result<SharedRegion> take(uint64_t bytes);
  /// A region that take() gave and nobody reads any more.
  void give_back(SharedRegion region);

  RegionPoolCounts counts() const;

  /// The size of a new region for `bytes`: at most an eighth more.
  static uint64_t size_for(uint64_t bytes);

 private:
  const std::string name_;
  const uint64_t idle_bytes_max_;
  mutable std::mutex mutex_;
  std::list<SharedRegion> idle_;  // the one that waits longest first
  RegionPoolCounts counts_;
};

}  // namespace percheron
