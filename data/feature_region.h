#pragma once

#include <cstdint>
#include <string>

#include "base/file_system.h"
#include "base/status.h"
#include "data/features.h"
#include "data/transport/file_descriptor.h"

namespace percheron {

/// Features in shared memory, whose size and content are sealed: as write_feature_block() writes
/// them.
struct FeatureRegion {
  FileDescriptor fd;
  uint64_t bytes = 0;
  uint32_t crc32c = 0;  // of all bytes
};

/// kResourceExhausted without memory.
Result<FeatureRegion> write_feature_region(FileSystem& files, const Features& features);

/// A path by which this process opens what `fd` refers to.
std::string path_of(const FileDescriptor& fd);

}  // namespace percheron
