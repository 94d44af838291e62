#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/file_system.h"
#include "base/status.h"

namespace percheron {

class TokenDataset;

/// Writes a token shard of samples of the given lengths, in tokens, made of `dataset`'s: for each,
/// as many of its conversations one after another as the length needs, going on where the sample
/// before ended, cut at the front, so that an answer's end stays. The same for the same input.
Status write_stretched_shard(FileSystem& files, const TokenDataset& dataset,
                             std::span<const int32_t> lengths, const std::string& path);

}  // namespace percheron
