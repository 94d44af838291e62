#pragma once

#include <string>

#include "base/file_system.h"
#include "base/status.h"
#include "data/features.h"
#include "data/safetensors_content.h"

namespace percheron {

/// The features of a micro-batch as one safetensors file, as another process reads them
/// (docs/formats.md): the tensors of a shard of features, with the padding of its documents. They
/// are borrowed from `features`. Errors as lay_out_safetensors().
Result<SafetensorsContent> lay_out_feature_block(const Features& features);

/// The features of such a file. kDataLoss, naming what contradicts what, for anything else.
Result<Features> read_feature_block(FileSystem& files, const std::string& path);

}  // namespace percheron
