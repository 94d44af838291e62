#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "data/length_file.h"
#include "tests/base/fault_file_system.h"

namespace percheron {

/// The published training set behind the figures that the tests name: its samples, the upper
/// bounds of its buckets and their batches.
inline constexpr int64_t kPublishedSamples = 902087;
inline const std::vector<int64_t> kPublishedBounds = {770, 1216, 1728, 2432, 3296, 8192};
inline const std::vector<int64_t> kPublishedCounts = {2120, 4017, 5471, 7493, 8009, 19581};

/// A quantile function of lengths with the published percentiles of that set, as JSON.
inline std::string stand_in_json(int64_t samples) {
  return R"({"samples": )" + std::to_string(samples) + R"(,
    "quantile": [0, 0.10, 0.1504, 0.25, 0.331, 0.50, 0.6686, 0.75, 0.8018, 0.90, 0.95, 0.99, 1.0],
    "length": [65, 637, 770, 1035, 1216, 1728, 2432, 2912, 3296, 4200, 4374, 4917, 8191]})";
}

/// Its lengths, ascending.
inline std::vector<int32_t> stand_in_lengths(int64_t samples = kPublishedSamples) {
  FaultFileSystem files;
  const Status written = write_text_atomically(files, "stand_in.json", stand_in_json(samples));
  EXPECT_TRUE(written.ok()) << written.message();
  auto lengths = read_lengths(files, "stand_in.json");
  EXPECT_TRUE(lengths.ok()) << lengths.status().message();
  return lengths.ok() ? *std::move(lengths) : std::vector<int32_t>();
}

}  // namespace percheron
