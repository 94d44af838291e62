#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace percheron {
namespace {

using nlohmann::json;

template <class T>
constexpr std::string_view kTypeName = "";
template <>
constexpr std::string_view kTypeName<bool> = "true or false";
template <>
constexpr std::string_view kTypeName<int64_t> = "an integer";
template <>
constexpr std::string_view kTypeName<double> = "a number";
template <>
constexpr std::string_view kTypeName<std::string> = "a string";
template <>
constexpr std::string_view kTypeName<std::vector<int64_t>> = "an array of integers";
template <>
constexpr std::string_view kTypeName<std::vector<double>> = "an array of numbers";
template <>
constexpr std::string_view kTypeName<std::vector<std::string>> = "an array of strings";

bool convert(const json& value, bool& out) {
  if (!value.is_boolean()) return false;
  out = *value.get_ptr<const json::boolean_t*>();
  return true;
}

bool convert(const json& value, int64_t& out) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && *value.get_ptr<const json::number_unsigned_t*>() >
                                        uint64_t{std::numeric_limits<int64_t>::max()}) {
    return false;
  }
  out = value.get<int64_t>();
  return true;
}

bool convert(const json& value, double& out) {
  if (!value.is_number()) return false;
  out = value.get<double>();
  return true;
}

bool convert(const json& value, std::string& out) {
  if (!value.is_string()) return false;
  out = *value.get_ptr<const json::string_t*>();
  return true;
}

template <class T>
bool convert(const json& value, std::vector<T>& out) {
  if (!value.is_array()) return false;
  out.clear();
  for (const json& element : value) {
    T converted;
    if (!convert(element, converted)) return false;
    out.push_back(std::move(converted));
  }
  return true;
}

Status wrong_type(const json& value, std::string_view key, std::string_view what,
                  std::string_view expected) {
  return invalid_argument(
      fmt::format("{}: \"{}\" must be {}, not {}", what, key, expected, shown(value)));
}

Result<const json*> find(const json& object, std::string_view key, std::string_view what) {
  if (!object.is_object()) {
    return invalid_argument(
        fmt::format("{}: an object with \"{}\" is expected, not {}", what, key, shown(object)));
  }
  const auto found = object.find(key);
  if (found == object.end()) return not_found(fmt::format("{}: \"{}\" is missing", what, key));
  return &*found;
}

// How many objects and arrays are open at once, at most. Text that is no JSON gives any number.
int deepest_nesting(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (in_string) {
      if (c == '\\') ++i;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

std::string shown(const json& value) {
  constexpr size_t kShownBytesMax = 80;
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kShownBytesMax) text = text.substr(0, kShownBytesMax) + "...";
  return text;
}

Result<json> parse_json(std::string_view text, std::string_view what) {
  if (deepest_nesting(text) > kJsonDepthMax) {
    return invalid_argument(fmt::format(
        "{}: JSON that nests objects or arrays deeper than {} is not read", what, kJsonDepthMax));
  }
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    std::string_view message = error.what();
    // Drop the library's own "[json.exception.parse_error.101] ".
    if (const size_t end = message.find("] "); end != message.npos) message.remove_prefix(end + 2);
    return invalid_argument(fmt::format("{} is not valid JSON: {}", what, message));
  }
}

template <class T>
Result<T> json_get(const json& object, std::string_view key, std::string_view what) {
  PERCHERON_ASSIGN_OR_RETURN(const json* value, find(object, key, what));
  T converted{};
  if (!convert(*value, converted)) return wrong_type(*value, key, what, kTypeName<T>);
  return converted;
}

template <class T>
Result<T> json_get_or(const json& object, std::string_view key, T fallback, std::string_view what) {
  const Result<const json*> value = find(object, key, what);
  if (!value.ok()) {
    if (value.status().code() != StatusCode::kNotFound) return value.status();
    return fallback;
  }
  if ((*value)->is_null()) return fallback;
  return json_get<T>(object, key, what);
}

Result<const json*> json_object(const json& object, std::string_view key, std::string_view what) {
  PERCHERON_ASSIGN_OR_RETURN(const json* value, find(object, key, what));
  if (!value->is_object()) return wrong_type(*value, key, what, "an object");
  return value;
}

Result<const json*> json_array(const json& object, std::string_view key, std::string_view what) {
  PERCHERON_ASSIGN_OR_RETURN(const json* value, find(object, key, what));
  if (!value->is_array()) return wrong_type(*value, key, what, "an array");
  return value;
}

#define PERCHERON_INSTANTIATE(T)                                                   \
  template Result<T> json_get<T>(const json&, std::string_view, std::string_view); \
  template Result<T> json_get_or<T>(const json&, std::string_view, T, std::string_view)

PERCHERON_INSTANTIATE(bool);
PERCHERON_INSTANTIATE(int64_t);
PERCHERON_INSTANTIATE(double);
PERCHERON_INSTANTIATE(std::string);
PERCHERON_INSTANTIATE(std::vector<int64_t>);
PERCHERON_INSTANTIATE(std::vector<double>);
PERCHERON_INSTANTIATE(std::vector<std::string>);

}  // namespace percheron
