#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace percheron {

/// Where the rows of a token shard come from: content hashes of the tokenizer, the chat template,
/// the source text and the options of its preparation; the tokenizer's vocabulary size. What is
/// equal here renders and masks a conversation the same way.
struct Passport {
  std::string tokenizer_hash;
  std::string template_hash;
  std::string source_hash;
  std::string options_hash;
  int64_t vocab_size = 0;

  bool operator==(const Passport&) const = default;
};

/// Reads the passport from a shard's metadata. `where` names the shard in messages. Unknown keys
/// are left alone. kInvalidArgument for bad JSON, a missing or empty field, vocab_size < 1.
Result<Passport> parse_passport(std::string_view json, std::string_view where);
std::string passport_json(const Passport& passport);

/// What must be equal at capture, training, resume and export, as an ordered list of (field,
/// value). Features carry its digest, checkpoints its fields (docs/formats.md).
class Fingerprint {
 public:
  using Field = std::pair<std::string, std::string>;

  /// Appends the field, or replaces its value. Neither may hold a line break; `field` no ": ".
  void set(std::string field, std::string value);
  const std::vector<Field>& fields() const { return fields_; }
  /// Null when there is no such field.
  const std::string* find(std::string_view field) const;
  /// One "field: value" line each.
  std::string text() const;
  /// Content hash of text(), 32 hexadecimal digits.
  std::string digest() const;
  static Result<Fingerprint> parse(std::string_view text, std::string_view where);

  bool operator==(const Fingerprint&) const = default;

 private:
  std::vector<Field> fields_;
};

/// What the fingerprint of a run is made of.
struct FingerprintParts {
  Passport passport;
  std::string target_hash;       // content hash of the target's weights
  std::vector<int64_t> capture;  // captured residual streams, as in drafter.capture
  std::string rope;              // the target's rope in words, one line
  int64_t mask_token = -1;       // DFlash's mask token id; -1 = none
  std::string
      draft_vocabulary_hash;  // of the ids the drafter proposes; empty = the whole vocabulary
};

Fingerprint make_fingerprint(const FingerprintParts& parts);

/// Ok when equal; else kFailedPrecondition that names the first differing field with both values
/// and the other fields that differ. `saved_name` and `current_name` say whose they are, such as
/// "the checkpoint runs/a/step-00001200" and "this run".
Status compare_fingerprints(const Fingerprint& saved, std::string_view saved_name,
                            const Fingerprint& current, std::string_view current_name);

}  // namespace percheron
