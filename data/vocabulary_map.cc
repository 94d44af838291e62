#include "data/vocabulary_map.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "base/hash.h"
#include "data/token_shard.h"

namespace percheron {
namespace {

Status bad_map(const SafetensorsFile& file, const std::string& what) {
  return invalid_argument(file.path() + ": the draft vocabulary is broken: " + what +
                          "; export the drafter again");
}

}  // namespace

std::vector<int64_t> count_supervised_tokens(const TokenDataset& dataset, int64_t vocab_size) {
  PERCHERON_CHECK(dataset.passport().vocab_size <= vocab_size,
                  "the target's vocabulary is smaller than the tokenizer's");
  std::vector<int64_t> counts(static_cast<size_t>(vocab_size));
  for (int64_t i = 0; i < dataset.samples(); ++i) {
    if (dataset.supervised(i) == 0) continue;
    const auto tokens = dataset.tokens(i);
    const auto mask = dataset.mask(i);
    for (size_t t = 0; t < tokens.size(); ++t) counts[tokens[t]] += mask[t];
  }
  return counts;
}

DraftVocabulary::DraftVocabulary(std::vector<int64_t> ids, int64_t vocab_size,
                                 std::string data_hash)
    : ids_(std::move(ids)),
      d2t_(ids_.size()),
      t2d_(static_cast<size_t>(vocab_size)),
      data_hash_(std::move(data_hash)) {
  for (size_t i = 0; i < ids_.size(); ++i) {
    d2t_[i] = ids_[i] - static_cast<int64_t>(i);
    t2d_[static_cast<size_t>(ids_[i])] = 1;
  }
}

Result<DraftVocabulary> DraftVocabulary::most_frequent(std::span<const int64_t> counts,
                                                       int64_t draft_vocab_size,
                                                       int64_t real_vocab_size,
                                                       std::string data_hash) {
  const auto vocab_size = static_cast<int64_t>(counts.size());
  if (real_vocab_size < 1 || real_vocab_size > vocab_size)
    return invalid_argument("the tokenizer has " + std::to_string(real_vocab_size) +
                            " tokens, but the target's embedding has " +
                            std::to_string(vocab_size) + " rows");
  if (draft_vocab_size < 1 || draft_vocab_size > real_vocab_size)
    return invalid_argument("drafter.draft_vocab_size is " + std::to_string(draft_vocab_size) +
                            ", expected 1 to the tokenizer's " + std::to_string(real_vocab_size) +
                            " tokens");
  std::vector<int64_t> ids(static_cast<size_t>(real_vocab_size));
  std::iota(ids.begin(), ids.end(), int64_t{0});
  const auto more_frequent = [&](int64_t a, int64_t b) {
    const int64_t count_a = counts[static_cast<size_t>(a)];
    const int64_t count_b = counts[static_cast<size_t>(b)];
    return count_a != count_b ? count_a > count_b : a < b;
  };
  std::sort(ids.begin(), ids.end(), more_frequent);
  ids.resize(static_cast<size_t>(draft_vocab_size));
  std::sort(ids.begin(), ids.end());
  return DraftVocabulary(std::move(ids), vocab_size, std::move(data_hash));
}

Result<DraftVocabulary> DraftVocabulary::read(const SafetensorsFile& file, int64_t vocab_size) {
  constexpr int64_t kAny[] = {-1};
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView d2t, file.tensor("d2t", DType::kI64, kAny));
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView t2d, file.tensor("t2d"));
  if (t2d.rank() != 1 || (t2d.dtype() != DType::kBool && t2d.dtype() != DType::kU8))
    return bad_map(file, "t2d is " + describe(t2d) + ", expected BOOL or U8 [V]");
  if (t2d.dim(0) != vocab_size)
    return bad_map(file, "t2d has " + std::to_string(t2d.dim(0)) +
                             " entries, but the target's vocabulary " + std::to_string(vocab_size));
  if (d2t.dim(0) < 1 || d2t.dim(0) > vocab_size)
    return bad_map(file, "d2t has " + std::to_string(d2t.dim(0)) + " entries, expected 1 to " +
                             std::to_string(vocab_size));
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < d2t.dim(0); ++i) {
    const int64_t offset = d2t.as<int64_t>()[i];
    const auto entry = [&] { return "d2t[" + std::to_string(i) + "] = " + std::to_string(offset); };
    if (offset < 0 || offset >= vocab_size - i)  // Ascending distinct ids have no negative offset.
      return bad_map(file, entry() + " leads outside the target's vocabulary of " +
                               std::to_string(vocab_size));
    if (!ids.empty() && i + offset <= ids.back())
      return bad_map(file, entry() + " makes target ids that do not ascend");
    if (t2d.as<uint8_t>()[i + offset] != 1)
      return bad_map(file, entry() + " means target id " + std::to_string(i + offset) +
                               ", which t2d does not mark");
    ids.push_back(i + offset);
  }
  int64_t marked = 0;
  for (int64_t v = 0; v < vocab_size; ++v) {
    if (t2d.as<uint8_t>()[v] > 1)
      return bad_map(file, "t2d[" + std::to_string(v) + "] is neither 0 nor 1");
    marked += t2d.as<uint8_t>()[v];
  }
  if (marked != d2t.dim(0))
    return bad_map(file, "t2d marks " + std::to_string(marked) + " ids, d2t has " +
                             std::to_string(d2t.dim(0)));
  const auto found = file.metadata().find(kDraftVocabularyDataHash);
  return DraftVocabulary(std::move(ids), vocab_size,
                         found == file.metadata().end() ? "" : found->second);
}

double DraftVocabulary::coverage(std::span<const int64_t> counts) const {
  PERCHERON_CHECK(counts.size() == t2d_.size(), "counts are of the target's vocabulary");
  int64_t all = 0, covered = 0;
  for (size_t v = 0; v < counts.size(); ++v) {
    all += counts[v];
    if (t2d_[v] != 0) covered += counts[v];
  }
  return all == 0 ? 1 : static_cast<double>(covered) / static_cast<double>(all);
}

std::string DraftVocabulary::hash() const {
  ContentHash hash;
  const int64_t size = target_size();
  hash.add(std::as_bytes(std::span(&size, 1)));
  hash.add(std::as_bytes(std::span(ids_)));
  return hash.hex();
}

}  // namespace percheron
