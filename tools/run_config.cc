#include "tools/run_config.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <set>

#include "base/nearest_name.h"
#include "tools/peer_spellings.h"
#include "tools/yaml_scalar.h"

namespace percheron {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

/// Where a value stands, for messages: "run.yaml:12" or "override".
std::string place(const std::string& name, const YAML::Node& node) {
  if (node.Mark().is_null()) return name;
  return fmt::format("{}:{}", name, node.Mark().line + 1);
}

std::string key_path(const std::string& parent, std::string_view key) {
  return parent.empty() ? std::string(key) : fmt::format("{}.{}", parent, key);
}

Status unknown_key(const std::string& where, const std::string& parent, const std::string& key,
                   const Descriptor& message) {
  const std::string path = key_path(parent, key);
  if (const std::string_view ours = our_spelling_of(key); !ours.empty()) {
    return invalid_argument(fmt::format("{}: unknown key '{}': here it is {}", where, path, ours));
  }
  std::vector<std::string_view> names;
  for (int i = 0; i < message.field_count(); ++i) names.push_back(message.field(i)->name());
  const std::string_view nearest = nearest_name(key, names);
  if (!nearest.empty()) {
    return invalid_argument(fmt::format("{}: unknown key '{}': did you mean '{}'?", where, path,
                                        key_path(parent, nearest)));
  }
  return invalid_argument(fmt::format("{}: unknown key '{}': {} has {}", where, path,
                                      parent.empty() ? "a configuration" : parent,
                                      fmt::join(names, ", ")));
}

Status apply_map(const YAML::Node& node, const std::string& name, const std::string& path,
                 Message& message);

Status apply_list(const YAML::Node& node, const std::string& name, const std::string& path,
                  const FieldDescriptor& field, Message& message) {
  message.GetReflection()->ClearField(&message, &field);
  if (node.IsScalar())
    return set_scalar(node.Scalar(), place(name, node), path, field, message);  // a list of one
  if (!node.IsSequence()) {
    return invalid_argument(
        fmt::format("{}: {} must be a list, such as [a, b]", place(name, node), path));
  }
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) {
      return invalid_argument(
          fmt::format("{}: {} must be a list of plain values", place(name, item), path));
    }
    PERCHERON_RETURN_IF_ERROR(set_scalar(item.Scalar(), place(name, item), path, field, message));
  }
  return ok_status();
}

Status apply_field(const YAML::Node& node, const std::string& name, const std::string& path,
                   const FieldDescriptor& field, Message& message) {
  if (field.is_repeated()) return apply_list(node, name, path, field, message);
  if (field.type() == FieldDescriptor::TYPE_MESSAGE) {
    return apply_map(node, name, path, *message.GetReflection()->MutableMessage(&message, &field));
  }
  if (node.IsNull()) {
    message.GetReflection()->ClearField(&message, &field);
    return ok_status();
  }
  if (!node.IsScalar()) {
    return invalid_argument(fmt::format("{}: {} must be a single value", place(name, node), path));
  }
  return set_scalar(node.Scalar(), place(name, node), path, field, message);
}

Status apply_map(const YAML::Node& node, const std::string& name, const std::string& path,
                 Message& message) {
  if (node.IsNull()) return ok_status();
  if (!node.IsMap()) {
    return invalid_argument(fmt::format("{}: {} must be a map of keys and values",
                                        place(name, node),
                                        path.empty() ? "a configuration" : path));
  }
  std::set<std::string> seen;
  for (const auto& entry : node) {
    if (!entry.first.IsScalar()) {
      return invalid_argument(
          fmt::format("{}: a key must be a plain word", place(name, entry.first)));
    }
    const std::string key = entry.first.Scalar();
    const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(key);
    if (field == nullptr)
      return unknown_key(place(name, entry.first), path, key, *message.GetDescriptor());
    if (!seen.insert(key).second) {
      return invalid_argument(
          fmt::format("{}: {} is given twice", place(name, entry.first), key_path(path, key)));
    }
    PERCHERON_RETURN_IF_ERROR(
        apply_field(entry.second, name, key_path(path, key), *field, message));
  }
  return ok_status();
}

Result<YAML::Node> load_yaml(const std::string& text, const std::string& name) {
  try {
    return YAML::Load(text);
  } catch (const YAML::Exception& error) {
    return invalid_argument(
        fmt::format("{}:{}: not valid YAML: {}", name, error.mark.line + 1, error.msg));
  }
}

Status apply_override(const std::string& override_text, proto::Run& run) {
  const size_t equals = override_text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return invalid_argument(fmt::format("override '{}' is not section.key=value", override_text));
  }
  const std::string name = fmt::format("override '{}'", override_text);
  PERCHERON_ASSIGN_OR_RETURN(const YAML::Node value,
                             load_yaml(override_text.substr(equals + 1), name));
  Message* message = &run;
  std::string path;
  std::string rest = override_text.substr(0, equals);
  while (true) {
    const size_t dot = rest.find('.');
    const std::string key = rest.substr(0, dot);
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(key);
    if (field == nullptr) return unknown_key(name, path, key, *message->GetDescriptor());
    path = key_path(path, key);
    if (dot == std::string::npos) return apply_field(value, name, path, *field, *message);
    if (field->type() != FieldDescriptor::TYPE_MESSAGE) {
      return invalid_argument(fmt::format("{}: {} has no keys below it", name, path));
    }
    message = message->GetReflection()->MutableMessage(message, field);
    rest = rest.substr(dot + 1);
  }
}

void emit(const Message& message, int indent, std::string& out) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string margin(static_cast<size_t>(indent) * 2, ' ');
    if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
      out += fmt::format("{}{}:\n", margin, field->name());
      emit(message.GetReflection()->GetMessage(message, field), indent + 1, out);
    } else {
      out += fmt::format("{}{}: {}\n", margin, field->name(), scalar_yaml(message, *field));
    }
  }
}

}  // namespace

Result<proto::Run> parse_run_config(const std::string& text, const std::string& name,
                                    const std::vector<std::string>& overrides) {
  proto::Run run;
  PERCHERON_ASSIGN_OR_RETURN(const YAML::Node root, load_yaml(text, name));
  try {
    PERCHERON_RETURN_IF_ERROR(apply_map(root, name, "", run));
    for (const std::string& entry : overrides)
      PERCHERON_RETURN_IF_ERROR(apply_override(entry, run));
  } catch (const YAML::Exception& error) {
    return invalid_argument(fmt::format("{}: not valid YAML: {}", name, error.msg));
  }
  return run;
}

Result<proto::Run> read_run_config(FileSystem& files, const std::string& path,
                                   const std::vector<std::string>& overrides) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(path));
  return parse_run_config(text, path, overrides);
}

std::string run_config_yaml(const proto::Run& run) {
  std::string out;
  emit(run, 0, out);
  return out;
}

}  // namespace percheron
