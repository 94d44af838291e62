#pragma once

#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "proto/run.pb.h"

namespace percheron {

/// Reads a run's configuration from YAML, then applies the overrides ("section.key=value", value in
/// YAML) in order. Errors name the file (or "override"), the line, the key and its value: an
/// unknown key with the nearest name or, for a known spelling of another trainer, ours; a wrong
/// type; a number out of range; an unknown enum value with the choices; a key given twice. Byte
/// counts may be spelled with a unit: "512MiB", "2GB".
Result<proto::Run> read_run_config(FileSystem& files, const std::string& path,
                                   const std::vector<std::string>& overrides);

/// The same from text; `name` stands for the file in messages.
Result<proto::Run> parse_run_config(const std::string& text, const std::string& name,
                                    const std::vector<std::string>& overrides);

/// The configuration in YAML as it was understood, fields that were not given left out.
std::string run_config_yaml(const proto::Run& run);

}  // namespace percheron
