#pragma once

#include <string>

#include "base/file_system.h"
#include "base/status.h"

namespace percheron {

/// Refuses the output directory of a run where one of its checkpoints was meant, and names it.
/// ok for every other path.
Status check_is_no_run(FileSystem& files, const std::string& path);

/// Compares `target_hash`, a target's weights_hash(), with that of the target for which the
/// checkpoint at `directory` was trained. kFailedPrecondition names both where they differ; ok for
/// a drafter without a manifest, which says nothing of its target.
Status check_trained_for(FileSystem& files, const std::string& directory,
                         const std::string& target_hash);

/// Whether the directory has a checkpoint's manifest.
bool has_manifest(FileSystem& files, const std::string& directory);

}  // namespace percheron
