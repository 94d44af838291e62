#pragma once

#include <memory>
#include <string>

#include "base/file_system.h"
#include "base/status.h"
#include "model/config.h"
#include "model/weights.h"

namespace percheron {

/// A target's directory, opened and checked once. Immutable: several ranks load from it at a time.
struct TargetFiles {
  std::string directory;
  ModelConfig config;
  WeightFiles weights;
};

/// Opens the weights that `config`, read from `directory`, asks for. Errors as WeightFiles::open()
/// and check().
Result<std::shared_ptr<const TargetFiles>> open_target_files(FileSystem& files,
                                                             const std::string& directory,
                                                             ModelConfig config);

}  // namespace percheron
