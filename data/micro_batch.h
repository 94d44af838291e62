#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace percheron {

/// Names a micro-batch of a run: the plan makes the same rows from it on every machine.
struct MicroBatchId {
  int64_t epoch = 0;
  int64_t index = 0;

  auto operator<=>(const MicroBatchId&) const = default;
};

/// The unit of work: samples packed into one row of T tokens without padding, block-diagonal.
struct MicroBatch {
  MicroBatchId id;
  std::vector<uint32_t> token_ids;   // [T]
  std::vector<uint8_t> loss_mask;    // [T], 1 = supervised (an assistant's token)
  std::vector<int32_t> offsets;      // [D + 1], document d is rows offsets[d] .. offsets[d + 1]
  std::vector<uint64_t> sample_ids;  // [D], positions in the data set

  int64_t tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t documents() const { return static_cast<int64_t>(sample_ids.size()); }
};

}  // namespace percheron
