#include "bench/stretched_shard.h"

#include <vector>

#include "data/safetensors.h"
#include "data/token_shard.h"

namespace percheron {

Status write_stretched_shard(FileSystem& files, const TokenDataset& dataset,
                             std::span<const int32_t> lengths, const std::string& path) {
  std::vector<uint32_t> tokens, conversations;
  std::vector<uint8_t> mask, supervised;
  std::vector<int64_t> offsets = {0};
  int64_t next = 0;
  for (const int32_t length : lengths) {
    conversations.clear();
    supervised.clear();
    while (conversations.size() < static_cast<size_t>(length)) {
      const auto ids = dataset.tokens(next);
      const auto flags = dataset.mask(next);
      conversations.insert(conversations.end(), ids.begin(), ids.end());
      supervised.insert(supervised.end(), flags.begin(), flags.end());
      next = (next + 1) % dataset.samples();
    }
    tokens.insert(tokens.end(), conversations.end() - length, conversations.end());
    mask.insert(mask.end(), supervised.end() - length, supervised.end());
    offsets.push_back(static_cast<int64_t>(tokens.size()));
  }
  Passport passport = dataset.passport();
  passport.options_hash += "-stretched";
  const std::vector<NamedTensor> tensors = {
      {"tokens", view_of(std::span<const uint32_t>(tokens))},
      {"loss_mask", view_of(std::span<const uint8_t>(mask))},
      {"offsets", view_of(std::span<const int64_t>(offsets))}};
  return write_safetensors(
      files, path, tensors,
      {{"format", std::string(kTokenShardFormat)}, {"passport", passport_json(passport)}});
}

}  // namespace percheron
