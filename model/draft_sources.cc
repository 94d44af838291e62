#include "model/draft_sources.h"

#include <fmt/format.h>

namespace percheron {

Result<ConstTensorView> captured_columns(const DrafterConfig& config, ConstTensorView features) {
  const auto wanted = static_cast<int64_t>(config.capture.size());
  if (!features.present() || features.rank() != 3 || features.dim(1) < wanted ||
      features.dim(2) != config.target_hidden_size) {
    return invalid_argument(
        fmt::format("the drafter reads {} captured states of {}, but the target yields {}", wanted,
                    config.target_hidden_size, features.present() ? describe(features) : "none"));
  }
  const int64_t width = features.dim(1) * features.dim(2);
  return features.reshaped({features.dim(0), width}).columns(0, wanted * features.dim(2));
}

Result<std::unique_ptr<DraftSource>> make_draft_source(Context& context, Drafter& drafter,
                                                       int64_t length_max) {
  if (length_max < 1) {
    return invalid_argument(fmt::format("a draft source for {} tokens", length_max));
  }
  if (const auto* eagle3 = dynamic_cast<const Eagle3Drafter*>(&drafter)) {
    return make_eagle3_source(context, *eagle3, length_max);
  }
  if (const auto* dflash = dynamic_cast<const DflashDrafter*>(&drafter)) {
    return make_dflash_source(context, *dflash, length_max);
  }
  return invalid_argument("this kind of drafter can't draft");
}

Result<std::vector<int32_t>> accepted_at_every_position(Context& context, Drafter& drafter,
                                                        const Features& features, int64_t drafts) {
  const DrafterConfig& config = drafter.config();
  if (drafts < 1 || drafts > kDraftLengthMax) {
    return invalid_argument(
        fmt::format("{} drafts: there can be from 1 to {}", drafts, kDraftLengthMax));
  }
  PERCHERON_RETURN_IF_ERROR(captured_columns(config, features.hidden_view()).status());
  for (const uint32_t id : features.batch.token_ids) {
    if (id < static_cast<uint64_t>(config.body.vocab_size)) continue;
    return invalid_argument(fmt::format("the features hold token {}, outside the vocabulary of {}",
                                        id, config.body.vocab_size));
  }
  if (const auto* eagle3 = dynamic_cast<const Eagle3Drafter*>(&drafter)) {
    return eagle3_accepted(context, *eagle3, features, drafts);
  }
  if (const auto* dflash = dynamic_cast<const DflashDrafter*>(&drafter)) {
    return dflash_accepted(context, *dflash, features, drafts);
  }
  return invalid_argument("this kind of drafter can't draft");
}

}  // namespace percheron
