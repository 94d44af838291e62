#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "model/acceptance.h"
#include "model/drafter.h"
#include "model/generation.h"
#include "model/target.h"

namespace percheron {

/// The most tokens that a round may draft.
constexpr int64_t kDraftLengthMax = 1024;

/// Proposes the continuation of one sequence. Keeps what it needs of the verified prefix between
/// rounds.
class DraftSource {
 public:
  virtual ~DraftSource() = default;
  /// Forgets the sequence; the next call starts a new one.
  virtual void reset() = 0;
  /// `features` [n, K, H]: captured states of the n rows verified since the last call (the prompt
  /// at first); `next` [n]: the token after each of these rows, the bonus token last. Returns up to
  /// `count` drafted tokens.
  virtual Result<std::vector<int32_t>> draft(Context& context, ConstTensorView features,
                                             std::span<const int32_t> next, int64_t count) = 0;
};

/// Greedy chain of an EAGLE-3 drafter, or one block of a DFlash drafter (at most block_size - 1
/// tokens).
Result<std::unique_ptr<DraftSource>> make_draft_source(Context& context, Drafter& drafter,
                                                       int64_t length_max);

/// Prompt lookup: continues the latest earlier occurrence of the last n-gram (n = longest..1), the
/// floor without a model.
std::unique_ptr<DraftSource> make_prompt_lookup(std::span<const int32_t> prompt,
                                                int64_t longest = 3);

struct SpeculativeResult {
  std::vector<int32_t> tokens;  // greedy: those of plain decoding, for drafts of up to 15 tokens
  bool stopped = false;         // by a stop token; false: the limit cut it
  std::vector<Round> rounds;    // of the tokens after the first, which is the prefill's
  int64_t target_calls = 0;     // prefill included
  double prefill_seconds = 0, draft_seconds = 0, verify_seconds = 0;
};

/// The real draft-verify loop for one sequence with greedy verification (temperature 0), or
/// speculative sampling of Leviathan et al. 2023 for temperature > 0 with a greedy drafter.
/// `source` null or a `draft_length` of 0: plain decoding. `draft_length`: tokens to draft a round;
/// the source may draft fewer. `clock` measures the three times. kInvalidArgument for an empty
/// prompt, a token outside the vocabulary, a negative temperature, new_tokens_max outside
/// [1, kNewTokensMax] or draft_length outside [0, kDraftLengthMax].
Result<SpeculativeResult> decode(Context& context, Target& target, DraftSource* source,
                                 std::span<const int32_t> prompt, const GenerateOptions& options,
                                 int64_t draft_length, const Clock& clock = system_clock());

/// The walk of the reference trainer over a stored greedy answer: the drafter drafts from every
/// answer position, then the decode rounds are walked. Counts the rounds and the tokens that they
/// yield for each limit in `draft_lengths`. `accepted` [T]: entry b - 1 = drafts accepted when the
/// bonus token is at position b. Prefill's token counts nowhere.
struct WalkCounts {
  std::vector<int64_t> rounds, tokens;  // per limit
  void add(const WalkCounts& other);
};
WalkCounts walk_answer(std::span<const int32_t> accepted, std::span<const uint8_t> loss_mask,
                       std::span<const int64_t> draft_lengths);

/// For every position b of the features' documents: how many drafts in a row equal the document's
/// own tokens (where supervised) when drafting starts at bonus position b. All rows at once.
/// Returns [T], entry b - 1; 0 elsewhere. kInvalidArgument for `drafts` outside [1,
/// kDraftLengthMax], a token outside the vocabulary, or features that lack states.
Result<std::vector<int32_t>> accepted_at_every_position(Context& context, Drafter& drafter,
                                                        const Features& features, int64_t drafts);

}  // namespace percheron
