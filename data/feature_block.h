#pragma once

#include <string>

#include "base/file_system.h"
#include "base/status.h"
#include "data/features.h"

namespace percheron {

/// Writes the features of a micro-batch as one safetensors file, as another process reads them
/// (docs/formats.md): the tensors of a shard of features, with the padding of its documents. `path`
/// may be that of an open file descriptor in /proc/self/fd. Errors as write_safetensors().
Status write_feature_block(FileSystem& files, const std::string& path, const Features& features);

/// The features that write_feature_block() wrote. kDataLoss, naming what contradicts what, for
/// anything else.
Result<Features> read_feature_block(FileSystem& files, const std::string& path);

}  // namespace percheron
