#include "model/row_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace percheron {
namespace {

Status check_tokens(const PackedSequences& rows, int64_t vocab_size) {
  const auto& ids = rows.token_ids;
  for (size_t n = 0; n < ids.size(); ++n) {
    if (ids[n] < 0 || ids[n] >= vocab_size) {
      return invalid_argument(
          fmt::format("token {} of row {} is outside the target's vocabulary of {}: was the data "
                      "made with another tokenizer?",
                      ids[n], n, vocab_size));
    }
  }
  return ok_status();
}

Status check_offsets(const PackedSequences& rows) {
  const auto& offsets = rows.offsets;
  if (offsets.empty() || offsets.front() != 0 ||
      offsets.back() != static_cast<int64_t>(rows.token_ids.size()) ||
      !std::is_sorted(offsets.begin(), offsets.end())) {
    return invalid_argument(fmt::format(
        "offsets of packed sequences must rise from 0 to the {} tokens", rows.token_ids.size()));
  }
  return ok_status();
}

Status check_slots(const PackedSequences& rows, const KvCache* cache) {
  if (cache == nullptr) {
    if (rows.cache_slots.empty()) return ok_status();
    return invalid_argument("sequences name cache slots, but there is no cache");
  }
  if (rows.cache_slots.size() + 1 != rows.offsets.size()) {
    return invalid_argument(fmt::format("{} sequences name {} cache slots", rows.offsets.size() - 1,
                                        rows.cache_slots.size()));
  }
  std::vector<bool> taken(static_cast<size_t>(cache->slots()), false);
  for (size_t d = 0; d < rows.cache_slots.size(); ++d) {
    const int32_t slot = rows.cache_slots[d];
    if (slot < 0 || slot >= cache->slots() || taken[static_cast<size_t>(slot)]) {
      return invalid_argument(
          fmt::format("sequence {} names cache slot {}: slots 0 to {} may be named once each", d,
                      slot, cache->slots() - 1));
    }
    taken[static_cast<size_t>(slot)] = true;
    const int64_t used = cache->used[static_cast<size_t>(slot)];
    const int64_t fresh = rows.offsets[d + 1] - rows.offsets[d];
    if (used < 0 || used + fresh > cache->length()) {
      return invalid_argument(fmt::format("cache slot {} holds {} of {} tokens, {} more do not fit",
                                          slot, used, cache->length(), fresh));
    }
  }
  return ok_status();
}

}  // namespace

bool is_causal(std::span<const int32_t> offsets, std::span<const int32_t> intervals) {
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    for (int32_t row = offsets[d]; row < offsets[d + 1]; ++row) {
      const int32_t* seen = intervals.data() + 4 * static_cast<size_t>(row);
      if (seen[0] != offsets[d] || seen[1] != row + 1 || seen[2] < seen[3]) return false;
    }
  }
  return true;
}

Result<RowPlan> plan_rows(const PackedSequences& rows, int64_t vocab_size, const KvCache* cache,
                          std::span<const int64_t> windows) {
  PERCHERON_RETURN_IF_ERROR(check_offsets(rows));
  PERCHERON_RETURN_IF_ERROR(check_tokens(rows, vocab_size));
  PERCHERON_RETURN_IF_ERROR(check_slots(rows, cache));
  RowPlan plan;
  const size_t count = rows.token_ids.size();
  plan.positions.reserve(count);
  plan.sequence.reserve(count);
  for (const int64_t window : windows) plan.intervals[window].reserve(4 * count);

  for (size_t d = 0; d + 1 < rows.offsets.size(); ++d) {
    const int64_t first = rows.offsets[d], fresh = rows.offsets[d + 1] - first;
    int64_t used = 0, base = first;  // base: the key row of the sequence's position 0
    if (cache != nullptr) {
      used = cache->used[static_cast<size_t>(rows.cache_slots[d])];
      base = rows.cache_slots[d] * cache->length();
      plan.cache_runs.push_back({first, fresh, base + used});
    }
    plan.lengths.push_back(used + fresh);
    for (int64_t position = used; position < used + fresh; ++position) {
      plan.positions.push_back(static_cast<int32_t>(position));
      plan.sequence.push_back(static_cast<int32_t>(d));
      for (auto& [window, intervals] : plan.intervals) {
        const int64_t oldest = window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
        intervals.push_back(static_cast<int32_t>(base + oldest));
        intervals.push_back(static_cast<int32_t>(base + position + 1));
        // Windows begin all over; their tiles of keys are counted from the sequence's first key.
        intervals.push_back(window == 0 ? 0 : static_cast<int32_t>(base));
        intervals.push_back(window == 0 ? 0 : kOriginOnly);
      }
    }
  }
  for (const auto& [window, intervals] : plan.intervals) {
    if (cache == nullptr && is_causal(rows.offsets, intervals)) plan.causal_windows.insert(window);
  }
  return plan;
}

}  // namespace percheron
