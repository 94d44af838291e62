#include "data/token_shard.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>

#include "base/hash.h"
#include "base/log.h"
#include "base/units.h"

namespace percheron {
namespace {

constexpr std::string_view kSuffix = ".safetensors";

template <class T>
std::span<const T> values_of(const ConstTensorView& view) {
  return {view.as<T>(), static_cast<size_t>(view.elements())};
}

// The shards that `path` names: itself, or what lies in it.
Result<std::vector<std::string>> shards_at(FileSystem& files, const std::string& path) {
  const Result<std::vector<std::string>> names = files.list(path);
  if (!names.ok()) return std::vector<std::string>{path};  // Opening it says what is wrong.
  std::vector<std::string> shards;
  for (const std::string& name : *names) {
    if (name.ends_with(kSuffix) && !name.starts_with('.')) shards.push_back(join_path(path, name));
  }
  if (shards.empty())
    return not_found("directory " + path + " holds no token shard (*.safetensors); make one with " +
                     "percheron prepare");
  return shards;
}

// Combines the hashes of shards from different sources into one.
std::string combined(const std::string& all, const std::string& next) {
  ContentHash hash;
  hash.add_text(all);
  hash.add_text(next);
  return hash.hex();
}

}  // namespace

// Hashes tokens, masks and lengths as three streams, so that the cut into shards does not matter.
class TokenDataset::Hashes {
 public:
  void add(const Shard& shard) {
    tokens_.add(std::as_bytes(shard.tokens));
    mask_.add(std::as_bytes(shard.mask));
    std::vector<int64_t> lengths(static_cast<size_t>(shard.rows()));
    for (size_t i = 0; i < lengths.size(); ++i)
      lengths[i] = shard.offsets[i + 1] - shard.offsets[i];
    lengths_.add(std::as_bytes(std::span<const int64_t>(lengths)));
  }

  std::string hex() const {
    ContentHash all;
    for (const ContentHash* part : {&tokens_, &mask_, &lengths_}) all.add_text(part->hex());
    return all.hex();
  }

 private:
  ContentHash tokens_, mask_, lengths_;
};

Result<TokenDataset> TokenDataset::open(FileSystem& files, std::span<const std::string> paths) {
  if (paths.empty()) return invalid_argument("no token shards are given: data.train is empty");
  TokenDataset dataset;
  Hashes hashes;
  for (const std::string& path : paths) {
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<std::string> shards, shards_at(files, path));
    for (const std::string& name : shards) {
      PERCHERON_ASSIGN_OR_RETURN(Shard shard, open_shard(files, name));
      shard.first_sample = dataset.samples();
      PERCHERON_RETURN_IF_ERROR(dataset.add_passport(shard));
      PERCHERON_RETURN_IF_ERROR(dataset.add_rows(shard));
      hashes.add(shard);
      dataset.shards_.push_back(std::move(shard));
      log_debug("read {}: {} samples so far", name, format_count(dataset.samples()));
    }
  }
  dataset.content_hash_ = hashes.hex();
  if (dataset.samples() == 0)
    return invalid_argument("the token shards in " + paths.front() + " hold no sample");
  if (dataset.supervised_tokens_ == 0)
    return invalid_argument("no token of the " + format_count(dataset.samples()) + " samples in " +
                            paths.front() + (paths.size() > 1 ? " and others" : "") +
                            " is supervised, so there is nothing to learn: look at the chat "
                            "template with percheron prepare");
  if (dataset.samples_without_supervision_ > 0)
    log_warning("{} of {} samples have no supervised token",
                format_count(dataset.samples_without_supervision_),
                format_count(dataset.samples()));
  return dataset;
}

Result<TokenDataset::Shard> TokenDataset::open_shard(FileSystem& files, const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(files, path));
  const auto format = file.metadata().find("format");
  if (format == file.metadata().end() || format->second != kTokenShardFormat)
    return invalid_argument(path + " is no token shard: its metadata has format '" +
                            (format == file.metadata().end() ? "" : format->second) +
                            "', expected '" + std::string(kTokenShardFormat) +
                            "'; make shards with percheron prepare");
  constexpr int64_t kAny[] = {-1};
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView tokens,
                             file.tensor("tokens", DType::kU32, kAny));
  const int64_t count[] = {tokens.dim(0)};
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView mask,
                             file.tensor("loss_mask", DType::kU8, count));
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView offsets,
                             file.tensor("offsets", DType::kI64, kAny));
  Shard shard;
  shard.tokens = values_of<uint32_t>(tokens);
  shard.mask = values_of<uint8_t>(mask);
  shard.offsets = values_of<int64_t>(offsets);
  shard.file = std::move(file);
  PERCHERON_RETURN_IF_ERROR(check_offsets(shard, shard.offsets, "offsets", count[0], 1));
  if (shard.file.contains("ids") || shard.file.contains("id_offsets")) {
    PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView ids,
                               shard.file.tensor("ids", DType::kU8, kAny));
    const int64_t ends[] = {offsets.dim(0)};
    PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView id_offsets,
                               shard.file.tensor("id_offsets", DType::kI64, ends));
    shard.ids = values_of<uint8_t>(ids);
    shard.id_offsets = values_of<int64_t>(id_offsets);
    PERCHERON_RETURN_IF_ERROR(check_offsets(shard, shard.id_offsets, "id_offsets", ids.dim(0), 0));
  }
  return shard;
}

Status TokenDataset::check_offsets(const Shard& shard, std::span<const int64_t> offsets,
                                   std::string_view name, int64_t end, int64_t length_min) {
  const auto bad = [&](const std::string& what) {
    return invalid_argument(shard.file.path() + ": " + std::string(name) + " " + what);
  };
  if (offsets.empty()) return bad("is empty, expected one more entry than rows");
  if (offsets.front() != 0)
    return bad("begin at " + std::to_string(offsets.front()) + ", not at 0");
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    // Ordered comparisons only: a difference of hostile offsets could overflow.
    if (offsets[i + 1] < offsets[i] || (length_min > 0 && offsets[i + 1] == offsets[i]))
      return bad("of row " + std::to_string(i) + " go from " + std::to_string(offsets[i]) + " to " +
                 std::to_string(offsets[i + 1]) + ", which must ascend");
    if (offsets[i + 1] > end || offsets[i + 1] - offsets[i] > std::numeric_limits<int32_t>::max())
      return bad("of row " + std::to_string(i) + " end at " + std::to_string(offsets[i + 1]) +
                 ", but there are " + std::to_string(end));
  }
  if (offsets.back() != end)
    return bad("end at " + std::to_string(offsets.back()) + ", but there are " +
               std::to_string(end));
  return ok_status();
}

Status TokenDataset::add_passport(const Shard& shard) {
  const std::string& path = shard.file.path();
  const auto found = shard.file.metadata().find("passport");
  if (found == shard.file.metadata().end())
    return invalid_argument(path +
                            " has no passport in its metadata; make it again with percheron "
                            "prepare");
  PERCHERON_ASSIGN_OR_RETURN(const Passport passport, parse_passport(found->second, path));
  const auto options = shard.file.metadata().find("options");
  const std::string said = options == shard.file.metadata().end() ? "" : options->second;
  if (shards_.empty()) {
    passport_ = passport;
    options_ = said;
    return ok_status();
  }
  if (options_ != said) options_.clear();
  const auto differ = [&](const char* field, const std::string& first, const std::string& second) {
    return invalid_argument("shards that do not belong together: " + std::string(field) + " is '" +
                            first + "' in " + shards_.front().file.path() + " but '" + second +
                            "' in " + path + "; prepare both with the same tokenizer and template");
  };
  if (passport.tokenizer_hash != passport_.tokenizer_hash)
    return differ("tokenizer_hash", passport_.tokenizer_hash, passport.tokenizer_hash);
  if (passport.template_hash != passport_.template_hash)
    return differ("template_hash", passport_.template_hash, passport.template_hash);
  if (passport.vocab_size != passport_.vocab_size)
    return differ("vocab_size", std::to_string(passport_.vocab_size),
                  std::to_string(passport.vocab_size));
  if (passport.source_hash != passport_.source_hash)
    passport_.source_hash = combined(passport_.source_hash, passport.source_hash);
  if (passport.options_hash != passport_.options_hash)
    passport_.options_hash = combined(passport_.options_hash, passport.options_hash);
  return ok_status();
}

Status TokenDataset::add_rows(const Shard& shard) {
  const auto vocab_size = static_cast<uint64_t>(passport_.vocab_size);
  supervised_.reserve(supervised_.size() + static_cast<size_t>(shard.rows()));
  for (int64_t r = 0; r < shard.rows(); ++r) {
    const auto bad = [&](const std::string& what) {
      return invalid_argument(shard.file.path() + " row " + std::to_string(r) + ": " + what);
    };
    const auto begin = static_cast<size_t>(shard.offsets[r]);
    const auto end = static_cast<size_t>(shard.offsets[r + 1]);
    // Largest values first: this loop runs over every token, the search for the culprit never.
    uint32_t token_max = 0;
    uint8_t mask_max = 0;
    int64_t supervised = 0;
    for (size_t i = begin; i < end; ++i) {
      token_max = std::max(token_max, shard.tokens[i]);
      mask_max = std::max(mask_max, shard.mask[i]);
      supervised += shard.mask[i];
    }
    if (token_max >= vocab_size)
      return bad("token id " + std::to_string(token_max) + " is outside the vocabulary of " +
                 std::to_string(vocab_size));
    if (mask_max > 1)
      return bad("loss_mask has the value " + std::to_string(mask_max) + ", expected 0 or 1");
    supervised_.push_back(static_cast<int32_t>(supervised));
    supervised_tokens_ += supervised;
    if (supervised == 0) ++samples_without_supervision_;
  }
  total_tokens_ += static_cast<int64_t>(shard.tokens.size());
  return ok_status();
}

TokenDataset::Row TokenDataset::row(int64_t i) const {
  PERCHERON_CHECK(0 <= i && i < samples(), "sample index outside the data set");
  const auto after = std::upper_bound(
      shards_.begin(), shards_.end(), i,
      [](int64_t sample, const Shard& shard) { return sample < shard.first_sample; });
  const Shard& shard = *std::prev(after);
  return {&shard, i - shard.first_sample};
}

std::span<const uint32_t> TokenDataset::tokens(int64_t i) const {
  const auto [shard, r] = row(i);
  const int64_t begin = shard->offsets[r];
  return shard->tokens.subspan(begin, shard->offsets[r + 1] - begin);
}

std::span<const uint8_t> TokenDataset::mask(int64_t i) const {
  const auto [shard, r] = row(i);
  const int64_t begin = shard->offsets[r];
  return shard->mask.subspan(begin, shard->offsets[r + 1] - begin);
}

std::string_view TokenDataset::id(int64_t i) const {
  const auto [shard, r] = row(i);
  if (shard->id_offsets.empty()) return {};
  const auto bytes =
      shard->ids.subspan(shard->id_offsets[r], shard->id_offsets[r + 1] - shard->id_offsets[r]);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string TokenDataset::describe(int64_t i) const {
  const auto [shard, r] = row(i);
  std::string text = shard->file.path() + " row " + std::to_string(r);
  if (const std::string_view name = id(i); !name.empty()) text += " (" + std::string(name) + ")";
  return text;
}

}  // namespace percheron
