#include "data/transport/region_pool.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace percheron {

uint64_t RegionPool::size_for(uint64_t bytes) {
  constexpr uint64_t kStepMin = 4096;
  const uint64_t step = std::max(std::bit_floor(bytes) / 8, kStepMin);
  return (bytes + step - 1) / step * step;
}

Result<SharedRegion> RegionPool::take(uint64_t bytes) {
  const uint64_t size = size_for(bytes);
  std::list<SharedRegion> dropped;  // let go after the lock: that takes time
  {
    const std::lock_guard lock(mutex_);
    auto best = idle_.end();
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      if (it->size() >= bytes && (best == idle_.end() || it->size() < best->size())) best = it;
    }
    if (best != idle_.end()) {
      SharedRegion region = std::move(*best);
      idle_.erase(best);
      counts_.idle_bytes -= region.size();
      ++counts_.reused;
      return region;
    }
    for (uint64_t room = 0; room < size && !idle_.empty();) {
      room += idle_.front().size();
      counts_.idle_bytes -= idle_.front().size();
      ++counts_.dropped;
      dropped.splice(dropped.end(), idle_, idle_.begin());
    }
  }
  dropped.clear();  // before new memory is asked for
  PERCHERON_ASSIGN_OR_RETURN(SharedRegion region,
                             SharedRegion::create(name_, size, SharedRegion::Backing::kOnDemand));
  PERCHERON_RETURN_IF_ERROR(region.seal_for_others());
  const std::lock_guard lock(mutex_);
  ++counts_.created;
  return region;
}

void RegionPool::give_back(SharedRegion region) {
  std::list<SharedRegion> dropped;  // let go after the lock
  const std::lock_guard lock(mutex_);
  if (region.size() > idle_bytes_max_) {
    ++counts_.dropped;
    dropped.push_back(std::move(region));
    return;
  }
  while (counts_.idle_bytes + region.size() > idle_bytes_max_) {
    counts_.idle_bytes -= idle_.front().size();
    ++counts_.dropped;
    dropped.splice(dropped.end(), idle_, idle_.begin());
  }
  counts_.idle_bytes += region.size();
  idle_.push_back(std::move(region));
}

RegionPoolCounts RegionPool::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace percheron
