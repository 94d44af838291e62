#include "tools/drafter_directory.h"

#include <fmt/format.h>

#include "data/checkpoint_manifest.h"

namespace percheron {

Status check_is_no_run(FileSystem& files, const std::string& path) {
  if (files.exists(join_path(path, "config.json"))) return ok_status();
  for (const char* checkpoint : {"best", "latest"}) {
    const std::string meant = join_path(path, checkpoint);
    if (!files.exists(join_path(meant, "config.json"))) continue;
    return invalid_argument(fmt::format(
        "{} is a run's output, which holds several drafters: did you mean {}?", path, meant));
  }
  return ok_status();
}

bool has_manifest(FileSystem& files, const std::string& directory) {
  return files.exists(join_path(directory, kManifest));
}

Status check_trained_for(FileSystem& files, const std::string& directory,
                         const std::string& target_hash) {
  if (!has_manifest(files, directory)) return ok_status();
  const std::string path = join_path(directory, kManifest);
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(path));
  PERCHERON_ASSIGN_OR_RETURN(const CheckpointManifest manifest, parse_manifest(text, path));
  const std::string* trained = manifest.fingerprint.find("target_hash");
  if (trained == nullptr || *trained == target_hash) return ok_status();
  return failed_precondition(fmt::format(
      "{} was trained for a target with other weights: their hash is {}, this target's is {}; give "
      "the target that it was trained for",
      directory, *trained, target_hash));
}

}  // namespace percheron
