#pragma once

#include <memory>

#include "base/file_system.h"
#include "data/transport/shared_region.h"

namespace percheron {

/// A file system of one file, whatever the path: the first `bytes` bytes of a shared region, for
/// who reads files. What it maps keeps the region. Every other operation is kFailedPrecondition.
std::unique_ptr<FileSystem> region_file(std::shared_ptr<const SharedRegion> region, uint64_t bytes);

}  // namespace percheron
