#include "actors/template_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <vector>

#include "base/json.h"
#include "data/sha256.h"

namespace percheron {
namespace {

constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr const char* kConfigFile = "tokenizer_config.json";
constexpr const char* kDefaultName = "default";
constexpr std::string_view kTokenSuffix = "_token";

// As Python's json.dumps writes a text. No UTF-8 means no template that `prepare` could have read.
std::string python_json(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true,
                                   nlohmann::json::error_handler_t::replace);
}

// The template in tokenizer_config.json: a text, or the one named "default" of several.
std::optional<std::string> template_in(const nlohmann::json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return std::nullopt;
  std::optional<std::string> text;
  for (const nlohmann::json& entry : *found) {
    if (!entry.is_object() || !entry.contains("name") || !entry.contains("template")) continue;
    if (entry["name"] == kDefaultName && entry["template"].is_string()) {
      text = entry["template"].get<std::string>();
    }
  }
  return text;
}

// Entries such as bos_token, each a text or an object with it, as Python writes a sorted dict.
std::string special_tokens_json(const nlohmann::json& config) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : config.items()) {
    if (!name.ends_with(kTokenSuffix)) continue;
    const nlohmann::json token =
        value.is_object() ? value.value("content", nlohmann::json()) : nlohmann::json(value);
    if (!token.is_string()) continue;
    entries.push_back(python_json(name) + ": " + python_json(token.get<std::string>()));
  }
  return fmt::format("{{{}}}", fmt::join(entries, ", "));
}

// What `percheron prepare` writes as template_hash; nothing where the directory has no template.
Result<std::optional<std::string>> template_hash_of(FileSystem& files, const std::string& target) {
  nlohmann::json config = nlohmann::json::object();
  const std::string config_path = join_path(target, kConfigFile);
  if (files.exists(config_path)) {
    PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(config_path));
    PERCHERON_ASSIGN_OR_RETURN(config, parse_json(text, config_path));
    if (!config.is_object()) {
      return invalid_argument(
          fmt::format("{} is no JSON object: copy the file again", config_path));
    }
  }
  std::optional<std::string> source = template_in(config);
  const std::string template_path = join_path(target, kTemplateFile);
  if (files.exists(template_path)) {
    PERCHERON_ASSIGN_OR_RETURN(source, files.read_text(template_path));
  }
  if (!source) return std::optional<std::string>();
  const std::string identity =
      fmt::format("[{}, {}]", python_json(*source), special_tokens_json(config));
  return std::optional(sha256_hex(std::as_bytes(std::span(identity))));
}

}  // namespace

Result<std::string> check_template(FileSystem& files, const std::string& target,
                                   const std::string& template_hash, const std::string& data) {
  PERCHERON_ASSIGN_OR_RETURN(const std::optional<std::string> own, template_hash_of(files, target));
  if (!own) {
    return fmt::format(
        "{} has no chat template: that {} was rendered with this target's is not checked", target,
        data);
  }
  if (*own == template_hash) return std::string();
  if (!is_sha256_hex(template_hash)) {
    return fmt::format(
        "the template_hash of {} is '{}', no SHA-256 of a chat template: that it was rendered with "
        "this target's is not checked",
        data, template_hash);
  }
  return invalid_argument(fmt::format(
      "{} was rendered with another chat template: its template_hash is {}, but that of {} is {}; "
      "prepare it again with this model (percheron prepare), or give the target.path that it was "
      "prepared for",
      data, template_hash, target, *own));
}

}  // namespace percheron
