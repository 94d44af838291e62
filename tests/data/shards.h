#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "data/safetensors.h"
#include "data/token_shard.h"

namespace percheron {

struct ShardRow {
  std::vector<uint32_t> tokens;
  std::vector<uint8_t> mask;
  std::string id;
};

/// A token shard in memory; tests break its parts before they write it.
struct ShardParts {
  std::vector<uint32_t> tokens;
  std::vector<uint8_t> mask;
  std::vector<int64_t> offsets = {0};
  std::vector<uint8_t> ids;
  std::vector<int64_t> id_offsets = {0};
  Passport passport = {"tok", "tem", "src", "opt", 100};
  std::string format = std::string(kTokenShardFormat);
  std::string options;
  bool with_ids = true;

  explicit ShardParts(const std::vector<ShardRow>& rows) {
    for (const ShardRow& row : rows) {
      tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.end());
      mask.insert(mask.end(), row.mask.begin(), row.mask.end());
      ids.insert(ids.end(), row.id.begin(), row.id.end());
      offsets.push_back(static_cast<int64_t>(tokens.size()));
      id_offsets.push_back(static_cast<int64_t>(ids.size()));
    }
  }

  Status write(FileSystem& files, const std::string& path) const {
    std::vector<NamedTensor> tensors = {{"tokens", view_of(std::span<const uint32_t>(tokens))},
                                        {"loss_mask", view_of(std::span<const uint8_t>(mask))},
                                        {"offsets", view_of(std::span<const int64_t>(offsets))}};
    if (with_ids) {
      tensors.push_back({"ids", view_of(std::span<const uint8_t>(ids))});
      tensors.push_back({"id_offsets", view_of(std::span<const int64_t>(id_offsets))});
    }
    std::map<std::string, std::string> metadata = {{"format", format},
                                                   {"passport", passport_json(passport)}};
    if (!options.empty()) metadata["options"] = options;
    return write_safetensors(files, path, tensors, metadata);
  }
};

/// Rows of these lengths: tokens count up from the row's number, the second half is supervised.
inline std::vector<ShardRow> rows_of_lengths(const std::vector<int64_t>& lengths) {
  std::vector<ShardRow> rows;
  for (size_t r = 0; r < lengths.size(); ++r) {
    ShardRow row;
    for (int64_t t = 0; t < lengths[r]; ++t) {
      row.tokens.push_back(static_cast<uint32_t>((r + static_cast<size_t>(t)) % 100));
      row.mask.push_back(t >= lengths[r] / 2 ? 1 : 0);
    }
    row.id = "row-" + std::to_string(r);
    rows.push_back(row);
  }
  return rows;
}

inline Result<TokenDataset> open_dataset(FileSystem& files, std::vector<std::string> paths) {
  return TokenDataset::open(files, paths);
}

}  // namespace percheron
