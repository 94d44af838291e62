#include <algorithm>

#include "base/check.h"
#include "model/speculative.h"

namespace percheron {
namespace {

// One answer, rows [begin, end): the bonus token moves from its first row to its last.
void walk_rounds(std::span<const int32_t> accepted, size_t begin, size_t end, int64_t limit,
                 int64_t& rounds, int64_t& tokens) {
  size_t at = begin;
  while (at + 1 < end) {
    const int64_t drafted = std::min<int64_t>(accepted[at - 1], limit);
    const int64_t step = std::min<int64_t>(drafted + 1, static_cast<int64_t>(end - 1 - at));
    at += static_cast<size_t>(step);
    ++rounds;
    tokens += step;
  }
}

}  // namespace

void WalkCounts::add(const WalkCounts& other) {
  const size_t limits = std::max(rounds.size(), other.rounds.size());
  rounds.resize(limits, 0);
  tokens.resize(limits, 0);
  for (size_t i = 0; i < other.rounds.size(); ++i) {
    rounds[i] += other.rounds[i];
    tokens[i] += other.tokens[i];
  }
}

WalkCounts walk_answer(std::span<const int32_t> accepted, std::span<const uint8_t> loss_mask,
                       std::span<const int64_t> draft_lengths) {
  PERCHERON_CHECK(accepted.size() == loss_mask.size(), "one count per row");
  WalkCounts counts;
  counts.rounds.resize(draft_lengths.size(), 0);
  counts.tokens.resize(draft_lengths.size(), 0);
  size_t row = 1;  // The first token has no row before it that could have predicted it.
  while (row < loss_mask.size()) {
    if (loss_mask[row] == 0) {
      ++row;
      continue;
    }
    size_t end = row;
    while (end < loss_mask.size() && loss_mask[end] != 0) ++end;
    for (size_t i = 0; i < draft_lengths.size(); ++i) {
      walk_rounds(accepted, row, end, draft_lengths[i], counts.rounds[i], counts.tokens[i]);
    }
    row = end;
  }
  return counts;
}

}  // namespace percheron
