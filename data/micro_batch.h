#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace percheron {

/// Names a micro-batch of a run: the plan makes the same rows from it on every machine.
struct MicroBatchId {
  int64_t epoch = 0;
  int64_t index = 0;

  auto operator<=>(const MicroBatchId&) const = default;
};

/// The unit of work: samples packed into one row of T tokens, block-diagonal. A plan that pads has
/// lengthened them before.
struct MicroBatch {
  MicroBatchId id;
  std::vector<uint32_t> token_ids;   // [T]
  std::vector<uint8_t> loss_mask;    // [T], 1 = supervised (an assistant's token)
  std::vector<int32_t> offsets;      // [D + 1], document d is rows offsets[d] .. offsets[d + 1]
  std::vector<uint64_t> sample_ids;  // [D], positions in the data set
  std::vector<int32_t> padding;      // [D] rows at the end of document d that are none of its own;
                                     // empty where no document is padded

  int64_t tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t documents() const { return static_cast<int64_t>(sample_ids.size()); }
  /// Behind the last row of document d that is its own.
  int64_t own_end(int64_t d) const {
    const auto document = static_cast<size_t>(d);
    return offsets[document + 1] - (padding.empty() ? 0 : padding[document]);
  }
};

/// The documents `documents` (ascending) of `batch` as a micro-batch of the same id.
MicroBatch select_documents(const MicroBatch& batch, std::span<const int32_t> documents);

/// CRC-32C of ids, tokens, mask, offsets and padding: two nodes compare it before they work on the
/// same rows.
uint32_t micro_batch_crc32c(const MicroBatch& batch);

}  // namespace percheron
