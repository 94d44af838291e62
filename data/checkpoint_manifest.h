#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "data/fingerprint.h"

namespace percheron {

/// The file of a checkpoint directory that is written last.
inline constexpr const char* kManifest = "manifest.json";

struct ManifestEntry {
  std::string name;  // relative to the checkpoint's directory
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
};

/// What a complete checkpoint consists of (docs/formats.md).
struct CheckpointManifest {
  int64_t step = 0;
  Fingerprint fingerprint;
  std::vector<ManifestEntry> files;
};

/// Size and checksum of directory/name as they are now.
Result<ManifestEntry> manifest_entry(FileSystem& files, const std::string& directory,
                                     const std::string& name);

/// JSON with a checksum of its own.
std::string manifest_text(const CheckpointManifest& manifest);

/// kDataLoss, naming `where`, for what manifest_text() can't have written.
Result<CheckpointManifest> parse_manifest(std::string_view text, std::string_view where);

}  // namespace percheron
