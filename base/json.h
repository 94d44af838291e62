#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace percheron {

/// How deep objects and arrays may nest in each other: copying and printing a value recurse.
constexpr int kJsonDepthMax = 64;

/// Parses one JSON value. `what` names the source in messages, usually a path. Never throws.
/// kInvalidArgument names `what`, the byte offset and what was expected, or the depth that is
/// beyond kJsonDepthMax.
Result<nlohmann::json> parse_json(std::string_view text, std::string_view what);

/// A value as messages show it: whole when short, else its beginning.
std::string shown(const nlohmann::json& value);

/// The value of `key` in `object` as T: bool, int64_t, double (from any number), std::string, or a
/// std::vector of int64_t, double or std::string.
/// kNotFound when the key is missing, kInvalidArgument when it holds another type (null too) or
/// `object` is no object; messages name `what` and the key.
template <class T>
Result<T> json_get(const nlohmann::json& object, std::string_view key, std::string_view what);

/// As json_get, but `fallback` when the key is missing or null.
template <class T>
Result<T> json_get_or(const nlohmann::json& object, std::string_view key, T fallback,
                      std::string_view what);

/// The object or array under `key`; lives as long as `object`. Errors as json_get.
Result<const nlohmann::json*> json_object(const nlohmann::json& object, std::string_view key,
                                          std::string_view what);
Result<const nlohmann::json*> json_array(const nlohmann::json& object, std::string_view key,
                                         std::string_view what);

}  // namespace percheron
