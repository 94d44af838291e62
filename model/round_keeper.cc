#include "model/round_keeper.h"

#include <algorithm>

#include "base/check.h"

namespace percheron {

RoundKeeper::RoundKeeper(int64_t new_tokens_max, std::span<const int64_t> stop_token_ids)
    : new_tokens_max_(new_tokens_max),
      stop_token_ids_(stop_token_ids.begin(), stop_token_ids.end()) {
  PERCHERON_CHECK(new_tokens_max > 0, "a sequence has room for the prefill's token");
}

void RoundKeeper::begin(int32_t token) {
  PERCHERON_CHECK(tokens_.empty(), "a sequence begins once");
  emit(token);
}

int64_t RoundKeeper::add_round(int64_t drafted, std::span<const int32_t> verified) {
  const int64_t count = static_cast<int64_t>(verified.size());
  PERCHERON_CHECK(!tokens_.empty() && !done(), "rounds follow the prefill and end with it");
  PERCHERON_CHECK(1 <= count && count <= drafted + 1,
                  "a round verifies its accepted drafts and one token of the target's own");
  rounds_.push_back({drafted, count - 1});
  int64_t emitted = 0;
  while (emitted < count && !done()) emit(verified[static_cast<size_t>(emitted++)]);
  return emitted;
}

void RoundKeeper::emit(int32_t token) {
  tokens_.push_back(token);
  stopped_ =
      std::find(stop_token_ids_.begin(), stop_token_ids_.end(), token) != stop_token_ids_.end();
}

std::span<const int32_t> verify_greedily(std::span<const int32_t> draft,
                                         std::span<const int32_t> target) {
  PERCHERON_CHECK(target.size() == draft.size() + 1, "the target chooses once more than drafted");
  return target.first(static_cast<size_t>(accepted_prefix(draft, target)) + 1);
}

}  // namespace percheron
