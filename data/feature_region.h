#pragma once

#include <cstdint>

#include "base/status.h"
#include "data/features.h"
#include "data/transport/region_pool.h"

namespace percheron {

/// Features in shared memory, as lay_out_feature_block() lays them out.
struct FeatureRegion {
  SharedRegion region;
  uint64_t bytes = 0;   // at the start of the region
  uint32_t crc32c = 0;  // of these bytes
  bool used_before = false;
};

/// Writes to a region of `pool`, to which it goes back once nobody reads it any more.
/// kResourceExhausted without memory.
Result<FeatureRegion> write_feature_region(RegionPool& pool, const Features& features);

/// Copies the features out of the first `bytes` bytes of a region. kDataLoss for what is none, and
/// where the bytes contradict `crc32c`: their maker may have used the memory again too early.
Result<Features> read_feature_region(FileDescriptor fd, uint64_t bytes, uint32_t crc32c);

}  // namespace percheron
