#include "data/feature_file.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>

namespace percheron {
namespace {

constexpr std::string_view kSamplePrefix = "hs_", kShardPrefix = "features-";
constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kBeforeFinalNorm = "before_final_norm";
// JSON around the header's texts: five tensors and the metadata's names.
constexpr uint64_t kHeaderFrame = 1024;

// The decimal number between prefix and suffix; -1 for other names.
int64_t number_between(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix) || !name.ends_with(kSuffix) ||
      name.size() <= prefix.size() + kSuffix.size())
    return -1;
  const std::string_view digits =
      name.substr(prefix.size(), name.size() - prefix.size() - kSuffix.size());
  int64_t number = -1;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
  return error == std::errc() && end == digits.end() && number >= 0 ? number : -1;
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16;
}

Status wrong_tensor(const SafetensorsFile& file, const std::string& name,
                    const ConstTensorView& view, const std::string& expected) {
  return invalid_argument(file.path() + ": tensor '" + name + "' is " + describe(view) +
                          ", expected " + expected);
}

std::string capture_text(const std::vector<int64_t>& capture) {
  std::string text;
  for (const int64_t state : capture) {
    if (!text.empty()) text += ",";
    text += std::to_string(state);
  }
  return text;
}

std::map<std::string, std::string> metadata_of(const FeatureOrigin& origin) {
  return {{"format", std::string(kFeatureFormat)},
          {"capture", capture_text(origin.capture)},
          {"last", origin.has_last ? std::string(kBeforeFinalNorm) : "none"},
          {"fingerprint", origin.fingerprint.text()}};
}

uint64_t header_bytes(const FeatureOrigin& origin) {
  uint64_t bytes = kHeaderFrame;
  // A line break takes two characters in JSON.
  for (const auto& [name, text] : metadata_of(origin)) bytes += name.size() + 2 * text.size();
  return bytes;
}

Status write_then_rename(FileSystem& files, const std::string& path,
                         std::span<const NamedTensor> tensors, const FeatureOrigin& origin) {
  const std::string unfinished = path + std::string(kUnfinishedSuffix);
  PERCHERON_RETURN_IF_ERROR(write_safetensors(files, unfinished, tensors, metadata_of(origin)));
  const Status renamed = files.rename(unfinished, path);
  if (!renamed.ok()) {
    // The rename's own error is the one to report.
    [[maybe_unused]] const Status ignored = files.remove_all(unfinished);
  }
  return renamed;
}

}  // namespace

std::string sample_file_name(uint64_t sample) {
  return std::string(kSamplePrefix) + std::to_string(sample) + std::string(kSuffix);
}

std::string shard_file_name(int64_t shard) {
  const std::string digits = std::to_string(shard);
  return std::string(kShardPrefix) + std::string(5 - std::min<size_t>(5, digits.size()), '0') +
         digits + std::string(kSuffix);
}

int64_t sample_of_file(std::string_view name) {
  const int64_t sample = number_between(name, kSamplePrefix);
  // hs_007 is not what anybody writes for sample 7, and hs_7 may lie beside it.
  return sample >= 0 && sample_file_name(static_cast<uint64_t>(sample)) == name ? sample : -1;
}

bool is_shard_name(std::string_view name) { return number_between(name, kShardPrefix) >= 0; }

Result<FeatureFile> FeatureFile::open(FileSystem& files, const std::string& path) {
  FeatureFile result;
  PERCHERON_ASSIGN_OR_RETURN(result.file_, SafetensorsFile::open(files, path));
  const SafetensorsFile& file = result.file_;
  PERCHERON_ASSIGN_OR_RETURN(result.states_, file.tensor("hidden_states"));
  if (result.states_.rank() != 3 || !is_float(result.states_.dtype()) ||
      result.states_.dim(1) < 1 || result.states_.dim(2) < 1)
    return wrong_tensor(file, "hidden_states", result.states_,
                        "[tokens, slots, hidden size] of F32, BF16 or F16");
  PERCHERON_RETURN_IF_ERROR(result.read_tokens());
  PERCHERON_RETURN_IF_ERROR(result.read_offsets());
  PERCHERON_RETURN_IF_ERROR(result.read_metadata());
  return result;
}

Status FeatureFile::read_tokens() {
  const int64_t rows = states_.dim(0);
  PERCHERON_ASSIGN_OR_RETURN(tokens_, file_.tensor("token_ids"));
  const DType dtype = tokens_.dtype();
  if (tokens_.rank() != 1 || tokens_.dim(0) != rows ||
      (dtype != DType::kI64 && dtype != DType::kI32 && dtype != DType::kU32))
    return wrong_tensor(file_, "token_ids", tokens_,
                        "[" + std::to_string(rows) + "] of I64, I32 or U32, one per state");
  if (!file_.contains("top1")) return ok_status();
  const int64_t shape[] = {rows};
  PERCHERON_ASSIGN_OR_RETURN(top1_, file_.tensor("top1", DType::kI32, shape));
  return ok_status();
}

Status FeatureFile::read_offsets() {
  const int64_t rows = states_.dim(0);
  if (!file_.contains("offsets")) {
    offsets_ = {0, rows};
    return ok_status();
  }
  const int64_t any[] = {-1};
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView offsets,
                             file_.tensor("offsets", DType::kI32, any));
  const int32_t* begin = offsets.as<int32_t>();
  offsets_.assign(begin, begin + offsets.dim(0));
  const bool ascending = std::adjacent_find(offsets_.begin(), offsets_.end(),
                                            std::greater_equal<>()) == offsets_.end();
  if (offsets_.size() < 2 || offsets_.front() != 0 || offsets_.back() != rows || !ascending)
    return data_loss(path() + ": offsets do not ascend from 0 to its " + std::to_string(rows) +
                     " rows");
  const int64_t documents[] = {this->documents()};
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView samples,
                             file_.tensor("sample_ids", DType::kI64, documents));
  sample_ids_ = {samples.as<int64_t>(), static_cast<size_t>(documents[0])};
  return ok_status();
}

Status FeatureFile::read_metadata() {
  const auto format = file_.metadata().find("format");
  // Frameworks put marks of their own there, such as "pt".
  if (format == file_.metadata().end() || !format->second.starts_with("percheron."))
    return ok_status();
  if (format->second != kFeatureFormat)
    return failed_precondition(path() + " has the format '" + format->second +
                               "', this version reads '" + std::string(kFeatureFormat) + "'");
  const auto& metadata = file_.metadata();
  const auto last = metadata.find("last");
  if (metadata.count("fingerprint") == 0 || last == metadata.end())
    return data_loss(path() + ": its metadata lacks the fingerprint or what the last slot is");
  ours_ = true;
  has_last_ = last->second == kBeforeFinalNorm;
  return ok_status();
}

const std::string* FeatureFile::fingerprint_text() const {
  return ours_ ? &file_.metadata().at("fingerprint") : nullptr;
}

ConstTensorView FeatureFile::states(int64_t document) const {
  return states_.rows(offsets_[document], offsets_[document + 1]);
}

bool FeatureFile::begins_with(int64_t document, std::span<const uint32_t> tokens) const {
  const int64_t begin = offsets_[document];
  const size_t count = std::min(tokens.size(), static_cast<size_t>(rows(document)));
  const auto same = [&](const auto* ids) {
    for (size_t t = 0; t < count; ++t) {
      if (static_cast<int64_t>(ids[t]) != static_cast<int64_t>(tokens[t])) return false;
    }
    return true;
  };
  if (tokens_.dtype() == DType::kI64) return same(tokens_.as<int64_t>() + begin);
  if (tokens_.dtype() == DType::kI32) return same(tokens_.as<int32_t>() + begin);
  return same(tokens_.as<uint32_t>() + begin);
}

std::span<const int32_t> FeatureFile::top1(int64_t document) const {
  if (!top1_.present()) return {};
  return {top1_.as<int32_t>() + offsets_[document], static_cast<size_t>(rows(document))};
}

Status write_sample_features(FileSystem& files, const std::string& directory,
                             const Features& features, int32_t document,
                             const FeatureOrigin& origin) {
  const MicroBatch& batch = features.batch;
  const int64_t begin = batch.offsets[static_cast<size_t>(document)];
  const int64_t end = batch.offsets[static_cast<size_t>(document) + 1];
  const std::vector<int64_t> ids(batch.token_ids.begin() + begin, batch.token_ids.begin() + end);
  std::vector<NamedTensor> tensors = {{"hidden_states", features.hidden_view().rows(begin, end)},
                                      {"token_ids", view_of(std::span<const int64_t>(ids))}};
  if (!features.top1.empty()) {
    tensors.push_back({"top1", view_of(std::span<const int32_t>(features.top1)).rows(begin, end)});
  }
  const uint64_t sample = batch.sample_ids[static_cast<size_t>(document)];
  return write_then_rename(files, join_path(directory, sample_file_name(sample)), tensors, origin);
}

Status write_feature_shard(FileSystem& files, const std::string& directory, int64_t shard,
                           const Features& features, const FeatureOrigin& origin) {
  const MicroBatch& batch = features.batch;
  const std::vector<int64_t> samples(batch.sample_ids.begin(), batch.sample_ids.end());
  std::vector<NamedTensor> tensors = {
      {"hidden_states", features.hidden_view()},
      {"token_ids", view_of(std::span<const uint32_t>(batch.token_ids))},
      {"loss_mask", view_of(std::span<const uint8_t>(batch.loss_mask))},
      {"offsets", view_of(std::span<const int32_t>(batch.offsets))},
      {"sample_ids", view_of(std::span<const int64_t>(samples))}};
  if (!features.top1.empty()) {
    tensors.push_back({"top1", view_of(std::span<const int32_t>(features.top1))});
  }
  return write_then_rename(files, join_path(directory, shard_file_name(shard)), tensors, origin);
}

uint64_t sample_file_bytes(const FeatureShape& shape, int64_t tokens, const FeatureOrigin& origin) {
  return header_bytes(origin) + shape.hidden_bytes(tokens) +
         static_cast<uint64_t>(tokens) * (shape.has_top1 ? 12 : 8);
}

uint64_t shard_file_bytes(const FeatureShape& shape, int64_t tokens, int64_t documents,
                          const FeatureOrigin& origin) {
  return header_bytes(origin) + shape.bytes(tokens, documents);
}

}  // namespace percheron
