#include "model/target_files.h"

#include <utility>

#include "base/log.h"

namespace percheron {

Result<std::shared_ptr<const TargetFiles>> open_target_files(FileSystem& files,
                                                             const std::string& directory,
                                                             ModelConfig config) {
  if (config.rope.type == RopeType::kDynamic) {
    log_warning(
        "{}: its dynamic rope is computed from each document's own length; serving engines differ "
        "in this beyond {} tokens",
        directory, config.max_position_embeddings);
  }
  PERCHERON_ASSIGN_OR_RETURN(WeightFiles weights, WeightFiles::open(files, directory));
  PERCHERON_RETURN_IF_ERROR(weights.check(config));
  return std::make_shared<const TargetFiles>(
      TargetFiles{directory, std::move(config), std::move(weights)});
}

}  // namespace percheron
