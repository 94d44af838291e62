#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "data/features.h"
#include "data/fingerprint.h"
#include "data/safetensors.h"

namespace percheron {

/// The value of `format` in the metadata of features files that Percheron writes.
inline constexpr std::string_view kFeatureFormat = "percheron.features.v1";

/// Where features come from; what the metadata of a features file says beside its tensors.
struct FeatureOrigin {
  std::vector<int64_t> capture;  // the states in the first slots, as in drafter.capture
  bool has_last = false;         // one more slot: the last layer's output before the final norm
  Fingerprint fingerprint;       // of the capture, its fields
};

/// A file of features (docs/formats.md): `hs_N.safetensors` of one sample, as vLLM and speculators
/// write it, or a shard of several. Mapped; views live as long as it does.
class FeatureFile {
 public:
  /// Checks names, types and shapes, and that lengths and offsets agree; reads no states. Errors
  /// name the file and the tensor: as SafetensorsFile::open(), kInvalidArgument for a tensor of
  /// another type or shape, kDataLoss for offsets that are no documents.
  static Result<FeatureFile> open(FileSystem& files, const std::string& path);

  const std::string& path() const { return file_.path(); }
  int64_t documents() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  /// The samples of a shard's documents; empty for a file of one sample, whose name says which.
  std::span<const int64_t> sample_ids() const { return sample_ids_; }
  DType dtype() const { return states_.dtype(); }
  int64_t slots() const { return states_.dim(1); }
  int64_t hidden_size() const { return states_.dim(2); }
  int64_t rows(int64_t document) const { return offsets_[document + 1] - offsets_[document]; }
  /// [rows, slots, H] of dtype(): F32, BF16 or F16.
  ConstTensorView states(int64_t document) const;
  /// Whether the document's first tokens, as many as both have, are these.
  bool begins_with(int64_t document, std::span<const uint32_t> tokens) const;
  /// [rows] the target's own next token where the next token is supervised, else -1; empty where
  /// the file has none.
  std::span<const int32_t> top1(int64_t document) const;

  /// The fingerprint's fields as text; null for a file that Percheron did not write.
  const std::string* fingerprint_text() const;
  /// Whether the slot after the captured states is the last layer's output. Only of Percheron's.
  bool has_last() const { return has_last_; }

 private:
  Status read_offsets();
  Status read_tokens();
  Status read_metadata();

  SafetensorsFile file_;
  ConstTensorView states_, tokens_, top1_;
  std::vector<int64_t> offsets_;  // [D + 1]
  std::span<const int64_t> sample_ids_;
  bool ours_ = false, has_last_ = false;
};

/// Element `i` of states of F32, BF16 or F16.
inline float float_at(const ConstTensorView& states, int64_t i) {
  if (states.dtype() == DType::kF32) return states.as<float>()[i];
  const uint16_t bits = states.as<uint16_t>()[i];
  return states.dtype() == DType::kBf16 ? float_from_bf16(bits) : float_from_f16(bits);
}

/// The name of the file of one sample: "hs_12.safetensors".
std::string sample_file_name(uint64_t sample);
/// The name of a shard: "features-00012.safetensors".
std::string shard_file_name(int64_t shard);
/// The sample of a file's name, -1 for other names.
int64_t sample_of_file(std::string_view name);
bool is_shard_name(std::string_view name);
/// What files have in their names while they are written.
inline constexpr std::string_view kUnfinishedSuffix = ".unfinished";

/// Writes document `document` as the file of one sample, or all of `features` as a shard: under a
/// name with kUnfinishedSuffix, synced, then renamed. A failed write leaves neither.
Status write_sample_features(FileSystem& files, const std::string& directory,
                             const Features& features, int32_t document,
                             const FeatureOrigin& origin);
Status write_feature_shard(FileSystem& files, const std::string& directory, int64_t shard,
                           const Features& features, const FeatureOrigin& origin);

/// What a file of so many documents of `tokens` tokens in all takes at most.
uint64_t sample_file_bytes(const FeatureShape& shape, int64_t tokens, const FeatureOrigin& origin);
uint64_t shard_file_bytes(const FeatureShape& shape, int64_t tokens, int64_t documents,
                          const FeatureOrigin& origin);

}  // namespace percheron
