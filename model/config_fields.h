#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/config.h"

namespace percheron {

/// Reads one JSON object of a config.json field by field, with ranges. The first error is kept in
/// status() and later reads give harmless values, so a reader checks once at its end. A null counts
/// as absent. Borrows the object.
class ConfigFields {
 public:
  /// `what` names the object in messages: a path, or "PATH: rope_scaling".
  ConfigFields(const nlohmann::json& object, std::string what);

  /// The value under `key`, or null when it is absent or null.
  const nlohmann::json* find(std::string_view key) const;
  /// Whether the key is there at all, even as null.
  bool written(std::string_view key) const;

  /// Integers in [least, most]. An absent key gives `fallback`; without one it is an error.
  int64_t integer(std::string_view key, int64_t least, int64_t most,
                  std::optional<int64_t> fallback = std::nullopt);
  /// Finite numbers in [least, most].
  double number(std::string_view key, double least, double most,
                std::optional<double> fallback = std::nullopt);
  std::optional<double> optional_number(std::string_view key, double least, double most);
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  std::vector<std::string> texts(std::string_view key);

  /// Keeps "WHAT: KEY is VALUE: `reason`" as the error, unless there is one already.
  void refuse(std::string_view key, std::string_view reason);
  void fail(Status status);
  const Status& status() const { return status_; }
  const std::string& what() const { return what_; }

 private:
  const nlohmann::json& object_;
  std::string what_;
  Status status_;
};

/// Refuses heads that attention() does not support: a head_dim that is odd or above kHeadDimMax,
/// whether stated or derived; query heads that no key heads share evenly or that too many share.
void check_heads(ConfigFields& fields, const ModelConfig& config);

}  // namespace percheron
