#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "model/target.h"

namespace percheron {

/// The most tokens that one call may generate for a prompt.
constexpr int64_t kNewTokensMax = int64_t{1} << 20;

struct GenerateOptions {
  int64_t new_tokens_max = 200;
  double temperature = 0;  // 0 = greedy
  uint64_t seed = 0;       // of sampling
  std::vector<int64_t> stop_token_ids;
  int64_t slots = 64;         // sequences in flight
  int64_t context_max = 0;    // tokens of a prompt and its answer at most; 0 = no limit
  int64_t cache_begin = 512;  // tokens for which a slot has room at first; the cache grows
};

/// A prompt to answer.
struct GenerationRequest {
  uint64_t id = 0;  // the client's name for it
  /// The draws of sampling depend on (seed, sample_key, position) only.
  uint64_t sample_key = 0;
  std::vector<int32_t> prompt;
};

struct Generated {
  std::vector<int32_t> tokens;  // with the stop token, if it was reached
  bool stopped = false;         // false: a limit cut it
};

/// Gives prompts one by one and gets the answers as they finish. Called by the generating thread,
/// between passes: what takes long here holds the device up.
class GenerationClient {
 public:
  enum class Wait { kNo, kYes };
  virtual ~GenerationClient() = default;

  /// The next prompt. None: with kNo there is none now; with kYes, asked for when no sequence is in
  /// flight, there will be none any more.
  virtual std::optional<GenerationRequest> next(Wait wait) = 0;
  virtual void answered(uint64_t id, Generated answer) = 0;
  /// This prompt can't be answered: kInvalidArgument if it is empty or holds a token outside the
  /// vocabulary, kResourceExhausted if it leaves no room for a token below context_max.
  virtual void refused(uint64_t id, const Status& why) = 0;
  /// True: nobody wants the rest; generate() ends with kCancelled after the pass.
  virtual bool cancelled() const { return false; }
};

/// Continuous batching over a KV cache: finished sequences make room for waiting prompts, which are
/// prefilled packed. A sequence's tokens do not depend on its neighbours, but up to 16 slots and
/// more may differ at near-ties in bf16 (Context::decoding). Returns when the client has no more
/// prompts. `progress` is called now and then with the number of tokens that are new since its last
/// call. kResourceExhausted when the cache can't grow to what the sequences in flight need.
Status generate(Context& context, Target& target, GenerationClient& client,
                const GenerateOptions& options,
                const std::function<void(int64_t)>& progress = nullptr);

/// The same for a list of prompts, whose sample keys are their indices; options.cache_begin is not
/// read. Errors as refused(), before any prompt is answered; kResourceExhausted when `slots` caches
/// of the longest prompt and answer do not fit.
Result<std::vector<Generated>> generate(Context& context, Target& target,
                                        std::span<const std::vector<int32_t>> prompts,
                                        const GenerateOptions& options,
                                        const std::function<void(int64_t)>& progress = nullptr);

/// Draws from softmax(logits / temperature), or the lowest of the largest logits at temperature 0.
int32_t pick_token(std::span<const float> logits, double temperature, double uniform);

}  // namespace percheron
