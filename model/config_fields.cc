#include "model/config_fields.h"

#include <fmt/format.h>

#include <cmath>

#include "base/json.h"
#include "kernels/ops.h"

namespace percheron {

ConfigFields::ConfigFields(const nlohmann::json& object, std::string what)
    : object_(object), what_(std::move(what)) {
  if (!object_.is_object()) {
    fail(invalid_argument(
        fmt::format("{}: a JSON object is expected, not {}", what_, shown(object_))));
  }
}

const nlohmann::json* ConfigFields::find(std::string_view key) const {
  if (!object_.is_object()) return nullptr;
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigFields::written(std::string_view key) const {
  return object_.is_object() && object_.contains(key);
}

int64_t ConfigFields::integer(std::string_view key, int64_t least, int64_t most,
                              std::optional<int64_t> fallback) {
  if (find(key) == nullptr) {
    if (fallback.has_value()) return *fallback;
    fail(invalid_argument(fmt::format("{}: \"{}\" is missing", what_, key)));
    return least;
  }
  const Result<int64_t> value = json_get<int64_t>(object_, key, what_);
  if (!value.ok()) {
    fail(value.status());
    return least;
  }
  if (*value < least || *value > most) {
    refuse(key, fmt::format("it must be from {} to {}", least, most));
    return least;
  }
  return *value;
}

double ConfigFields::number(std::string_view key, double least, double most,
                            std::optional<double> fallback) {
  if (find(key) == nullptr) {
    if (fallback.has_value()) return *fallback;
    fail(invalid_argument(fmt::format("{}: \"{}\" is missing", what_, key)));
    return least;
  }
  const Result<double> value = json_get<double>(object_, key, what_);
  if (!value.ok()) {
    fail(value.status());
    return least;
  }
  if (!std::isfinite(*value) || *value < least || *value > most) {
    refuse(key, fmt::format("it must be from {} to {}", least, most));
    return least;
  }
  return *value;
}

std::optional<double> ConfigFields::optional_number(std::string_view key, double least,
                                                    double most) {
  if (find(key) == nullptr) return std::nullopt;
  return number(key, least, most);
}

bool ConfigFields::boolean(std::string_view key, bool fallback) {
  const Result<bool> value = json_get_or<bool>(object_, key, fallback, what_);
  if (value.ok()) return *value;
  fail(value.status());
  return fallback;
}

std::string ConfigFields::text(std::string_view key, std::string_view fallback) {
  const Result<std::string> value =
      json_get_or<std::string>(object_, key, std::string(fallback), what_);
  if (value.ok()) return *value;
  fail(value.status());
  return std::string(fallback);
}

std::vector<std::string> ConfigFields::texts(std::string_view key) {
  const Result<std::vector<std::string>> value =
      json_get_or<std::vector<std::string>>(object_, key, {}, what_);
  if (value.ok()) return *value;
  fail(value.status());
  return {};
}

void ConfigFields::refuse(std::string_view key, std::string_view reason) {
  const nlohmann::json* value = find(key);
  fail(invalid_argument(fmt::format("{}: \"{}\" is {}: {}", what_, key,
                                    value == nullptr ? "absent" : shown(*value), reason)));
}

void ConfigFields::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void check_heads(ConfigFields& fields, const ModelConfig& config) {
  if (!fields.status().ok()) return;
  const int64_t heads = config.num_attention_heads, key_heads = config.num_key_value_heads;
  if (heads % key_heads != 0) {
    fields.refuse("num_attention_heads",
                  fmt::format("it must be a multiple of num_key_value_heads = {}", key_heads));
  } else if (heads / key_heads > kHeadsPerKeyHeadMax) {
    fields.refuse("num_attention_heads",
                  fmt::format("at most {} heads may share one of the {} key heads",
                              kHeadsPerKeyHeadMax, key_heads));
  }
  if (config.head_dim < 2 || config.head_dim > kHeadDimMax || config.head_dim % 2 != 0) {
    fields.fail(invalid_argument(
        fmt::format("{}: \"head_dim\" is {}: it must be an even number from 2 to {}", fields.what(),
                    config.head_dim, kHeadDimMax)));
  }
}

}  // namespace percheron
