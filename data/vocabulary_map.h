#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/safetensors.h"

namespace percheron {

class TokenDataset;

/// How often each token id is supervised in a data set: [vocab_size] counts.
/// `vocab_size` is the target's; it must not be below the data set's, which bounds the ids.
std::vector<int64_t> count_supervised_tokens(const TokenDataset& dataset, int64_t vocab_size);

/// The part of the target's vocabulary that a drafter proposes from. Immutable.
class DraftVocabulary {
 public:
  /// The `draft_vocab_size` most frequent ids, equally frequent ones from the lowest, so that
  /// unseen ids fill up from 0. `counts` is [vocab_size] of the target, whose embedding may be
  /// padded; only ids below `real_vocab_size`, the tokenizer's, are taken. `data_hash` names what
  /// was counted. kInvalidArgument if draft_vocab_size is not in [1, real_vocab_size] or sizes
  /// disagree. Source: vllm#55133 for the padded rows.
  static Result<DraftVocabulary> most_frequent(std::span<const int64_t> counts,
                                               int64_t draft_vocab_size, int64_t real_vocab_size,
                                               std::string data_hash);

  /// Reads `d2t` (I64 [V_d], offsets: draft id i is target id i + d2t[i]) and `t2d` (BOOL or U8
  /// [V]) of a drafter file and the metadata `draft_vocabulary_data_hash` where there is one.
  /// kNotFound when either tensor is missing. kInvalidArgument names the first entry that is out of
  /// range, not ascending, or on which the two disagree. Source: AutoModel#2447.
  static Result<DraftVocabulary> read(const SafetensorsFile& file, int64_t vocab_size);

  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  int64_t target_size() const { return static_cast<int64_t>(t2d_.size()); }
  /// Target ids in ascending order, [size].
  const std::vector<int64_t>& target_ids() const { return ids_; }
  /// As drafter files spell it, [size]: target id minus draft id.
  const std::vector<int64_t>& d2t() const { return d2t_; }
  /// 1 where the target id can be drafted, [target_size].
  const std::vector<uint8_t>& t2d() const { return t2d_; }

  /// The share of the counted tokens that can be drafted; 1 when nothing was counted.
  double coverage(std::span<const int64_t> counts) const;
  /// Of the data set that was counted; empty when unknown.
  const std::string& data_hash() const { return data_hash_; }
  /// Content hash of ids and target size.
  std::string hash() const;

 private:
  DraftVocabulary(std::vector<int64_t> ids, int64_t vocab_size, std::string data_hash);

  std::vector<int64_t> ids_;
  std::vector<int64_t> d2t_;
  std::vector<uint8_t> t2d_;
  std::string data_hash_;
};

/// The metadata key under which a drafter file names the counted data.
inline constexpr const char* kDraftVocabularyDataHash = "draft_vocabulary_data_hash";

}  // namespace percheron
