#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/target.h"

namespace percheron {

/// The most tokens that one call may generate for a prompt.
constexpr int64_t kNewTokensMax = int64_t{1} << 20;

struct GenerateOptions {
  int64_t new_tokens_max = 200;
  double temperature = 0;  // 0 = greedy
  uint64_t seed = 0;  // of sampling; a prompt's draws depend on (seed, its index, position) only
  std::vector<int64_t> stop_token_ids;
  int64_t slots = 64;  // sequences in flight
};

struct Generated {
  std::vector<int32_t> tokens;  // with the stop token, if it was reached
  bool stopped = false;         // false: the limit cut it
};

/// Continuous batching over a KV cache: finished sequences make room for waiting prompts, which are
/// prefilled packed. A sequence's tokens do not depend on its neighbours, but up to 16 sequences in
/// flight and more may differ at near-ties in bf16 (Context::decoding). `progress` is called now and
/// then with the number of tokens that are new since its last call. kInvalidArgument for an
/// empty prompt or a token outside the vocabulary; kResourceExhausted when `slots` caches of the
/// longest prompt and answer do not fit.
Result<std::vector<Generated>> generate(Context& context, Target& target,
                                        std::span<const std::vector<int32_t>> prompts,
                                        const GenerateOptions& options,
                                        const std::function<void(int64_t)>& progress = nullptr);

/// Draws from softmax(logits / temperature), or the lowest of the largest logits at temperature 0.
int32_t pick_token(std::span<const float> logits, double temperature, double uniform);

}  // namespace percheron
