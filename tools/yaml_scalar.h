#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "base/status.h"

namespace percheron {

/// Parses `text` by the field's type and sets it, or appends it to a repeated field. `where` and
/// `path` go into the message: file and line, and the dotted key. Fields named ...bytes_max take a
/// unit: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB.
Status set_scalar(const std::string& text, const std::string& where, const std::string& path,
                  const google::protobuf::FieldDescriptor& field,
                  google::protobuf::Message& message);

/// The field's value, or list of values, in YAML.
std::string scalar_yaml(const google::protobuf::Message& message,
                        const google::protobuf::FieldDescriptor& field);

}  // namespace percheron
