#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/acceptance.h"

namespace percheron {

/// Keeps the output of one sequence under draft-verify decoding: which tokens it has, when it ends,
/// and its rounds. Pure bookkeeping, so that the decode loop and the golden cases share it. Plain
/// decoding is rounds without drafts.
class RoundKeeper {
 public:
  /// `new_tokens_max` > 0. A stop token ends the sequence and belongs to it.
  RoundKeeper(int64_t new_tokens_max, std::span<const int64_t> stop_token_ids);

  /// The token that the prefill yields; it belongs to no round. Called once, first.
  void begin(int32_t token);
  /// One round: `verified` are the target's own tokens, accepted drafts first, then the bonus
  /// token; at least one, at most `drafted` + 1. The round counts whole, the output is cut after
  /// the first stop token or at the limit. Returns how many of `verified` were emitted.
  int64_t add_round(int64_t drafted, std::span<const int32_t> verified);

  /// Whether a stop token or the limit ended the sequence.
  bool done() const { return stopped_ || static_cast<int64_t>(tokens_.size()) >= new_tokens_max_; }
  bool stopped() const { return stopped_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<Round>& rounds() const { return rounds_; }

 private:
  void emit(int32_t token);

  int64_t new_tokens_max_;
  std::vector<int64_t> stop_token_ids_;
  bool stopped_ = false;
  std::vector<int32_t> tokens_;
  std::vector<Round> rounds_;
};

/// Greedy verification: the target's tokens g_1 .. g_{a + 1} that a round commits, where a =
/// accepted_prefix(draft, target). target: [draft.size() + 1], the target's choice after the
/// verified prefix and after each draft.
std::span<const int32_t> verify_greedily(std::span<const int32_t> draft,
                                         std::span<const int32_t> target);

}  // namespace percheron
