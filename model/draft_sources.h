#pragma once

#include <memory>
#include <vector>

#include "model/dflash.h"
#include "model/eagle3.h"
#include "model/speculative.h"

namespace percheron {

/// make_draft_source() and accepted_at_every_position() of each kind of drafter. `drafter` is
/// borrowed for the source's life.
Result<std::unique_ptr<DraftSource>> make_eagle3_source(Context& context,
                                                        const Eagle3Drafter& drafter,
                                                        int64_t length_max);
Result<std::unique_ptr<DraftSource>> make_dflash_source(Context& context,
                                                        const DflashDrafter& drafter,
                                                        int64_t length_max);
Result<std::vector<int32_t>> eagle3_accepted(Context& context, const Eagle3Drafter& drafter,
                                             const Features& features, int64_t drafts);
Result<std::vector<int32_t>> dflash_accepted(Context& context, const DflashDrafter& drafter,
                                             const Features& features, int64_t drafts);

/// Rows of the captured states [n, slots, H] that a drafter of this configuration reads, [n, K H].
/// kInvalidArgument if there are fewer slots or another width.
Result<ConstTensorView> captured_columns(const DrafterConfig& config, ConstTensorView features);

/// Elements of one row of keys, and of values.
inline int64_t key_columns(const DrafterConfig& config) {
  return config.body.num_key_value_heads * config.body.head_dim;
}

/// The target id of a draft row. `draft_ids` empty: the same.
inline int32_t target_token(std::span<const int32_t> draft_ids, int32_t row) {
  return draft_ids.empty() ? row : draft_ids[static_cast<size_t>(row)];
}

/// The token at row `row` of the document that ends before `end`, if it is supervised; else -1.
inline int32_t supervised_token(const MicroBatch& batch, int64_t row, int64_t end) {
  const auto at = static_cast<size_t>(row);
  return row < end && batch.loss_mask[at] != 0 ? static_cast<int32_t>(batch.token_ids[at]) : -1;
}

}  // namespace percheron
