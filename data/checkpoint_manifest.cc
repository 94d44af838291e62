#include "data/checkpoint_manifest.h"

#include <limits>

#include "base/hash.h"
#include "base/json.h"

namespace percheron {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "percheron.checkpoint.v1";
constexpr const char* kChecksum = "crc32c";

// Of the compact text, so that a reader need not keep the line breaks.
uint32_t checksum_of(const Json& manifest) {
  const std::string text = manifest.dump(-1, ' ', false, Json::error_handler_t::replace);
  return crc32c(std::as_bytes(std::span(text)));
}

Result<uint32_t> crc_field(const Json& object, std::string_view where) {
  PERCHERON_ASSIGN_OR_RETURN(const int64_t value, json_get<int64_t>(object, kChecksum, where));
  if (value < 0 || value > std::numeric_limits<uint32_t>::max())
    return data_loss(std::string(where) + ": crc32c is out of range");
  return static_cast<uint32_t>(value);
}

Result<CheckpointManifest> parse_fields(const Json& json, std::string_view where) {
  CheckpointManifest manifest;
  PERCHERON_ASSIGN_OR_RETURN(const std::string format,
                             json_get<std::string>(json, "format", where));
  if (format != kFormat)
    return data_loss(std::string(where) + ": format is '" + format + "', expected '" + kFormat +
                     "'");
  PERCHERON_ASSIGN_OR_RETURN(manifest.step, json_get<int64_t>(json, "step", where));
  PERCHERON_ASSIGN_OR_RETURN(const std::string fingerprint,
                             json_get<std::string>(json, "fingerprint", where));
  PERCHERON_ASSIGN_OR_RETURN(manifest.fingerprint, Fingerprint::parse(fingerprint, where));
  PERCHERON_ASSIGN_OR_RETURN(const Json* const files, json_array(json, "files", where));
  for (const Json& file : *files) {
    ManifestEntry entry;
    PERCHERON_ASSIGN_OR_RETURN(entry.name, json_get<std::string>(file, "name", where));
    PERCHERON_ASSIGN_OR_RETURN(const int64_t bytes, json_get<int64_t>(file, "bytes", where));
    PERCHERON_ASSIGN_OR_RETURN(entry.crc32c, crc_field(file, where));
    if (bytes < 0 || entry.name.empty() || entry.name.front() == '/' ||
        entry.name.find("..") != std::string::npos)
      return data_loss(std::string(where) + ": bad entry for '" + entry.name + "'");
    entry.bytes = static_cast<uint64_t>(bytes);
    manifest.files.push_back(std::move(entry));
  }
  return manifest;
}

}  // namespace

Result<ManifestEntry> manifest_entry(FileSystem& files, const std::string& directory,
                                     const std::string& name) {
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file,
                             files.map(join_path(directory, name)));
  return ManifestEntry{name, file->bytes().size(), crc32c(file->bytes())};
}

std::string manifest_text(const CheckpointManifest& manifest) {
  Json files = Json::array();
  for (const ManifestEntry& entry : manifest.files)
    files.push_back({{"name", entry.name}, {"bytes", entry.bytes}, {kChecksum, entry.crc32c}});
  Json json = {{"format", kFormat},
               {"step", manifest.step},
               {"fingerprint", manifest.fingerprint.text()},
               {"files", std::move(files)}};
  json[kChecksum] = checksum_of(json);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<CheckpointManifest> parse_manifest(std::string_view text, std::string_view where) {
  Result<Json> parsed = parse_json(text, where);
  if (!parsed.ok()) return data_loss(parsed.status().message());
  Json& json = parsed.value();
  Result<uint32_t> crc = crc_field(json, where);
  if (!crc.ok()) return data_loss(crc.status().message());
  json.erase(kChecksum);
  if (checksum_of(json) != *crc)
    return data_loss(std::string(where) + " contradicts its own checksum");
  Result<CheckpointManifest> manifest = parse_fields(json, where);
  if (!manifest.ok()) return data_loss(manifest.status().message());
  return manifest;
}

}  // namespace percheron
