#include "data/fingerprint.h"

#include <algorithm>
#include <span>

#include "base/hash.h"
#include "base/json.h"

namespace percheron {
namespace {

constexpr std::string_view kSeparator = ": ";

Result<std::string> hash_field(const nlohmann::json& object, std::string_view key,
                               std::string_view where) {
  PERCHERON_ASSIGN_OR_RETURN(std::string value, json_get<std::string>(object, key, where));
  if (value.empty() || value.find('\n') != std::string::npos)
    return invalid_argument(std::string(where) + ": '" + std::string(key) +
                            "' must be one line that is not empty");
  return value;
}

std::string value_in(const Fingerprint& fingerprint, const std::string& field) {
  const std::string* value = fingerprint.find(field);
  return value == nullptr ? "nothing" : "'" + *value + "'";
}

}  // namespace

Result<Passport> parse_passport(std::string_view json, std::string_view where) {
  const std::string what = "the passport of " + std::string(where);
  PERCHERON_ASSIGN_OR_RETURN(const nlohmann::json object, parse_json(json, what));
  Passport passport;
  PERCHERON_ASSIGN_OR_RETURN(passport.tokenizer_hash, hash_field(object, "tokenizer_hash", what));
  PERCHERON_ASSIGN_OR_RETURN(passport.template_hash, hash_field(object, "template_hash", what));
  PERCHERON_ASSIGN_OR_RETURN(passport.source_hash, hash_field(object, "source_hash", what));
  PERCHERON_ASSIGN_OR_RETURN(passport.options_hash, hash_field(object, "options_hash", what));
  PERCHERON_ASSIGN_OR_RETURN(passport.vocab_size, json_get<int64_t>(object, "vocab_size", what));
  if (passport.vocab_size < 1 || passport.vocab_size > int64_t{1} << 31)
    return invalid_argument(what + ": vocab_size is " + std::to_string(passport.vocab_size) +
                            ", which is no vocabulary's size");
  return passport;
}

std::string passport_json(const Passport& passport) {
  const nlohmann::json object = {{"tokenizer_hash", passport.tokenizer_hash},
                                 {"template_hash", passport.template_hash},
                                 {"source_hash", passport.source_hash},
                                 {"options_hash", passport.options_hash},
                                 {"vocab_size", passport.vocab_size}};
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void Fingerprint::set(std::string field, std::string value) {
  PERCHERON_CHECK(field.find(kSeparator) == std::string::npos &&
                      (field + value).find('\n') == std::string::npos,
                  "a fingerprint's fields are single lines");
  for (Field& known : fields_) {
    if (known.first == field) {
      known.second = std::move(value);
      return;
    }
  }
  fields_.emplace_back(std::move(field), std::move(value));
}

const std::string* Fingerprint::find(std::string_view field) const {
  for (const Field& known : fields_) {
    if (known.first == field) return &known.second;
  }
  return nullptr;
}

std::string Fingerprint::text() const {
  std::string text;
  for (const auto& [field, value] : fields_) {
    text.append(field).append(kSeparator).append(value).append("\n");
  }
  return text;
}

std::string Fingerprint::digest() const {
  const std::string all = text();
  return content_hash(std::as_bytes(std::span(all)));
}

Result<Fingerprint> Fingerprint::parse(std::string_view text, std::string_view where) {
  Fingerprint result;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const size_t separator = line.find(kSeparator);
    if (end == std::string_view::npos || separator == std::string_view::npos ||
        result.find(line.substr(0, separator)) != nullptr)
      return data_loss("the fingerprint in " + std::string(where) + " has the bad line '" +
                       std::string(line) + "'");
    result.set(std::string(line.substr(0, separator)),
               std::string(line.substr(separator + kSeparator.size())));
    text.remove_prefix(end + 1);
  }
  return result;
}

Fingerprint make_fingerprint(const FingerprintParts& parts) {
  std::string capture;
  for (const int64_t layer : parts.capture) {
    if (!capture.empty()) capture += ",";
    capture += std::to_string(layer);
  }
  const Passport& passport = parts.passport;
  Fingerprint fingerprint;
  fingerprint.set("tokenizer_hash", passport.tokenizer_hash);
  fingerprint.set("template_hash", passport.template_hash);
  fingerprint.set("source_hash", passport.source_hash);
  fingerprint.set("options_hash", passport.options_hash);
  fingerprint.set("vocab_size", std::to_string(passport.vocab_size));
  fingerprint.set("target_hash", parts.target_hash);
  fingerprint.set("capture", capture);
  fingerprint.set("rope", parts.rope);
  fingerprint.set("mask_token", parts.mask_token < 0 ? "none" : std::to_string(parts.mask_token));
  fingerprint.set("draft_vocabulary_hash",
                  parts.draft_vocabulary_hash.empty() ? "whole" : parts.draft_vocabulary_hash);
  return fingerprint;
}

Status compare_fingerprints(const Fingerprint& saved, std::string_view saved_name,
                            const Fingerprint& current, std::string_view current_name) {
  std::vector<std::string> differing;
  const auto collect = [&](const Fingerprint& from) {
    for (const auto& [field, value] : from.fields()) {
      if (value_in(saved, field) != value_in(current, field) &&
          std::find(differing.begin(), differing.end(), field) == differing.end())
        differing.push_back(field);
    }
  };
  collect(saved);
  collect(current);
  if (differing.empty()) return ok_status();
  // A setting, section.key, tells a reader more than the hashes that follow from it.
  std::stable_partition(differing.begin(), differing.end(), [](const std::string& field) {
    return field.find('.') != std::string::npos;
  });
  const std::string& first = differing.front();
  std::string message = std::string(saved_name) + " has " + first + " " + value_in(saved, first) +
                        ", but " + std::string(current_name) + " has " + value_in(current, first);
  if (differing.size() > 1) message += "; these differ too:";
  for (size_t i = 1; i < differing.size(); ++i) message += (i > 1 ? ", " : " ") + differing[i];
  return failed_precondition(std::move(message));
}

}  // namespace percheron
