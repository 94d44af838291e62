#include "tools/lookup_walk.h"

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "model/speculative.h"

namespace percheron {
namespace {

/// Entry b - 1: how many tokens after the answer's position b prompt lookup would have got right.
Result<std::vector<int32_t>> lookup_accepted(Context& context, std::span<const uint32_t> tokens,
                                             std::span<const uint8_t> mask, int64_t drafts) {
  const std::vector<int32_t> ids(tokens.begin(), tokens.end());
  const std::span<const int32_t> row(ids);
  std::vector<int32_t> accepted(ids.size(), 0);
  const auto begin = static_cast<size_t>(std::find(mask.begin(), mask.end(), 1) - mask.begin());
  const std::unique_ptr<DraftSource> source = make_prompt_lookup(row.first(begin));
  for (size_t b = begin; b > 0 && b < ids.size(); ++b) {
    PERCHERON_ASSIGN_OR_RETURN(
        const std::vector<int32_t> draft,
        source->draft(context, ConstTensorView(), row.subspan(b, 1), drafts));
    const size_t known = std::min(draft.size(), ids.size() - b - 1);
    accepted[b - 1] = static_cast<int32_t>(
        accepted_prefix(std::span(draft).first(known), row.subspan(b + 1, known)));
  }
  return accepted;
}

}  // namespace

Result<double> lookup_walk(Context& context, const TokenDataset& data,
                           const SampleSelection& selection, int64_t drafts) {
  WalkCounts total;
  const std::vector<int64_t> limits{drafts};
  for (size_t i = 0; i < selection.samples.size(); ++i) {
    const auto sample = static_cast<int64_t>(selection.samples[i]);
    const auto length = static_cast<size_t>(selection.lengths[i]);
    const std::span<const uint8_t> mask = data.mask(sample).first(length);
    PERCHERON_ASSIGN_OR_RETURN(
        const std::vector<int32_t> accepted,
        lookup_accepted(context, data.tokens(sample).first(length), mask, drafts));
    total.add(walk_answer(accepted, mask, limits));
  }
  const bool walked = !total.rounds.empty() && total.rounds[0] > 0;
  return walked ? static_cast<double>(total.tokens[0]) / static_cast<double>(total.rounds[0]) : 1.0;
}

}  // namespace percheron
