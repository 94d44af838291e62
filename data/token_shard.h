#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "data/fingerprint.h"
#include "data/safetensors.h"

namespace percheron {

/// The value of `format` in the metadata of a token shard.
inline constexpr std::string_view kTokenShardFormat = "percheron.tokens.v1";

/// Tokenized conversations of one or several token shards (docs/formats.md), mapped read-only.
/// Immutable and thread-safe once opened. Sample i keeps its number as long as the shards and their
/// order stay the same.
class TokenDataset {
 public:
  /// Opens each path: a shard, or a directory whose *.safetensors are taken in the order of their
  /// names. Reads everything once, so that training meets no bad row: token ids below the
  /// passport's vocabulary size, masks of 0 and 1, offsets that ascend from 0 to the end.
  /// Tokenizer, template and vocabulary size must be the same in all shards; source and options may
  /// differ. Errors name the shard, the row and the value. kNotFound for a missing path or an empty
  /// directory, kDataLoss for a broken file, kInvalidArgument for a bad row, for shards that do not
  /// belong together and for a data set in which no token is supervised.
  static Result<TokenDataset> open(FileSystem& files, std::span<const std::string> paths);

  int64_t samples() const { return static_cast<int64_t>(supervised_.size()); }
  /// Tokens of sample i, at least 1.
  int64_t length(int64_t i) const { return static_cast<int64_t>(tokens(i).size()); }
  std::span<const uint32_t> tokens(int64_t i) const;
  /// One byte a token, 1 = supervised.
  std::span<const uint8_t> mask(int64_t i) const;
  /// The sample's name in its source; empty where the shard carries none.
  std::string_view id(int64_t i) const;
  /// Supervised tokens of sample i.
  int64_t supervised(int64_t i) const { return supervised_[static_cast<size_t>(i)]; }
  /// The shard that holds sample i and the row in it, for messages: "chats.safetensors row 7".
  std::string describe(int64_t i) const;

  const Passport& passport() const { return passport_; }
  /// How the shards were prepared, as JSON of `percheron prepare`'s options; empty where they do
  /// not say so, or were prepared differently.
  const std::string& options() const { return options_; }
  /// Hash of all rows in order, whatever shards they are cut into. Names are not part of it.
  const std::string& content_hash() const { return content_hash_; }
  int64_t total_tokens() const { return total_tokens_; }
  int64_t supervised_tokens() const { return supervised_tokens_; }
  int64_t samples_without_supervision() const { return samples_without_supervision_; }

 private:
  struct Shard {
    SafetensorsFile file;
    int64_t first_sample = 0;
    std::span<const int64_t> offsets;     // [D + 1]
    std::span<const uint32_t> tokens;     // [N]
    std::span<const uint8_t> mask;        // [N]
    std::span<const int64_t> id_offsets;  // [D + 1] or empty
    std::span<const uint8_t> ids;

    int64_t rows() const { return static_cast<int64_t>(offsets.size()) - 1; }
  };
  struct Row {
    const Shard* shard;
    int64_t index;
  };
  class Hashes;

  static Result<Shard> open_shard(FileSystem& files, const std::string& path);
  static Status check_offsets(const Shard& shard, std::span<const int64_t> offsets,
                              std::string_view name, int64_t end, int64_t length_min);
  Status add_passport(const Shard& shard);
  Status add_rows(const Shard& shard);
  Row row(int64_t i) const;

  std::vector<Shard> shards_;
  std::vector<int32_t> supervised_;  // [samples]
  Passport passport_;
  std::string options_;
  std::string content_hash_;
  int64_t total_tokens_ = 0;
  int64_t supervised_tokens_ = 0;
  int64_t samples_without_supervision_ = 0;
};

}  // namespace percheron
