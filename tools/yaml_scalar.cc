#include "tools/yaml_scalar.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/units.h"

namespace percheron {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return text;
}

template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string enum_choices(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) names.push_back(lower(type.value(i)->name()));
  return fmt::format("{}", fmt::join(names, ", "));
}

const EnumValueDescriptor* find_enum(const EnumDescriptor& type, const std::string& text) {
  for (int i = 0; i < type.value_count(); ++i) {
    if (lower(type.value(i)->name()) == lower(text)) return type.value(i);
  }
  return nullptr;
}

/// Sets or appends through the pair of reflection functions for one type.
template <class T>
void put(Message& message, const FieldDescriptor& field, T value,
         void (Reflection::*set)(Message*, const FieldDescriptor*, T) const,
         void (Reflection::*append)(Message*, const FieldDescriptor*, T) const) {
  (message.GetReflection()->*(field.is_repeated() ? append : set))(&message, &field, value);
}

Status wrong(const std::string& where, const std::string& path, const std::string& text,
             std::string_view expected) {
  return invalid_argument(
      fmt::format("{}: {} is '{}', but must be {}", where, path, text, expected));
}

Status set_boolean(const std::string& text, const std::string& where, const std::string& path,
                   const FieldDescriptor& field, Message& message) {
  if (text != "true" && text != "false") return wrong(where, path, text, "true or false");
  put<bool>(message, field, text == "true", &Reflection::SetBool, &Reflection::AddBool);
  return ok_status();
}

Status set_enum(const std::string& text, const std::string& where, const std::string& path,
                const FieldDescriptor& field, Message& message) {
  const EnumValueDescriptor* value = find_enum(*field.enum_type(), text);
  if (value == nullptr)
    return wrong(where, path, text, "one of " + enum_choices(*field.enum_type()));
  put<const EnumValueDescriptor*>(message, field, value, &Reflection::SetEnum,
                                  &Reflection::AddEnum);
  return ok_status();
}

}  // namespace

Status set_scalar(const std::string& text, const std::string& where, const std::string& path,
                  const FieldDescriptor& field, Message& message) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: return set_boolean(text, where, path, field, message);
    case FieldDescriptor::CPPTYPE_ENUM: return set_enum(text, where, path, field, message);
    case FieldDescriptor::CPPTYPE_INT64: {
      const std::optional<int64_t> value = parse_number<int64_t>(text);
      if (!value) return wrong(where, path, text, "a whole number");
      put<int64_t>(message, field, *value, &Reflection::SetInt64, &Reflection::AddInt64);
      return ok_status();
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      const bool bytes = field.name().ends_with("bytes_max") || field.name().ends_with("_bytes");
      const std::optional<uint64_t> value =
          bytes ? parse_bytes(text) : parse_number<uint64_t>(text);
      if (!value)
        return wrong(where, path, text,
                     bytes ? "a byte count such as 512MiB" : "a whole number >= 0");
      put<uint64_t>(message, field, *value, &Reflection::SetUInt64, &Reflection::AddUInt64);
      return ok_status();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      const std::optional<double> value = parse_number<double>(text);
      if (!value || !std::isfinite(*value)) return wrong(where, path, text, "a finite number");
      put<double>(message, field, *value, &Reflection::SetDouble, &Reflection::AddDouble);
      return ok_status();
    }
    case FieldDescriptor::CPPTYPE_STRING:
      if (field.is_repeated()) {
        message.GetReflection()->AddString(&message, &field, text);
      } else {
        message.GetReflection()->SetString(&message, &field, text);
      }
      return ok_status();
    default: break;
  }
  PERCHERON_CHECK(false, "run.proto uses a type that the configuration reader does not know");
  return ok_status();
}

namespace {

std::string one_value(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool many = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return (many ? r.GetRepeatedBool(message, &field, index) : r.GetBool(message, &field))
                 ? "true"
                 : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return lower(
          (many ? r.GetRepeatedEnum(message, &field, index) : r.GetEnum(message, &field))->name());
    case FieldDescriptor::CPPTYPE_INT64:
      return std::to_string(many ? r.GetRepeatedInt64(message, &field, index)
                                 : r.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return std::to_string(many ? r.GetRepeatedUInt64(message, &field, index)
                                 : r.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return fmt::format(
          "{}", many ? r.GetRepeatedDouble(message, &field, index) : r.GetDouble(message, &field));
    default:
      return fmt::format("\"{}\"", many ? r.GetRepeatedString(message, &field, index)
                                        : r.GetString(message, &field));
  }
}

}  // namespace

std::string scalar_yaml(const Message& message, const FieldDescriptor& field) {
  if (!field.is_repeated()) return one_value(message, field, 0);
  std::vector<std::string> values;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field); ++i) {
    values.push_back(one_value(message, field, i));
  }
  return fmt::format("[{}]", fmt::join(values, ", "));
}

}  // namespace percheron
