#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"

namespace percheron {

/// The lengths in tokens of a data set's samples, in its order, from
///  - a token shard, or a directory of them (*.safetensors, docs/formats.md);
///  - *.json: a quantile function {"samples": n, "quantile": [...], "length": [...]}, from 0 to 1
///    and ascending; the length of sample i is the function at (i + 0.5) / n, linear between the
///    points and truncated to an integer;
///  - anything else: text with one integer a line; a last line may lack its line break.
/// Errors name the file, the line or field, and the value: kNotFound, kDataLoss for a broken shard,
/// kInvalidArgument for the rest, such as a length outside 1 .. kLengthMax (data/length_buckets.h)
/// or no length at all.
Result<std::vector<int32_t>> read_lengths(FileSystem& files, const std::string& path);

/// Samples of a quantile function, at most.
inline constexpr int64_t kLengthsMax = int64_t{1} << 28;

}  // namespace percheron
