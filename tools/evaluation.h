#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/speculative.h"

namespace percheron {

struct EvaluationOptions {
  GenerateOptions generate;
  int64_t draft_length = 3;
  bool with_lookup = true;  // also measure prompt lookup
  std::string thinking;     // how the prompts were rendered, in words
};

/// One way of decoding, summed over prompts.
struct DecodingTotals {
  AcceptanceCounts counts;
  int64_t tokens = 0, target_calls = 0;
  double prefill_seconds = 0, decode_seconds = 0, draft_seconds = 0;

  double tokens_per_second() const {
    return decode_seconds > 0 ? static_cast<double>(tokens) / decode_seconds : 0;
  }
  void add(const SpeculativeResult& result);
  void add(const DecodingTotals& other);
};

/// One prompt decoded every way, one after the other, so that all see the same machine.
struct EvaluatedPrompt {
  std::vector<int32_t> prompt;
  SpeculativeResult plain;
  std::optional<SpeculativeResult> drafted, looked_up;
  bool loops = false;  // an 8-gram stands three times or more in the plain answer
};

/// What a drafter is worth on a set of prompts, measured by the real draft-verify loop.
struct Evaluation {
  EvaluationOptions options;
  std::vector<EvaluatedPrompt> prompts;
  int64_t differing_answers = 0;  // drafted answers that are not the plain one, token for token

  DecodingTotals plain() const;
  DecodingTotals drafted() const;
  DecodingTotals looked_up() const;
  /// The same over the prompts whose answer does not loop: loops flatter every drafter.
  DecodingTotals drafted_without_loops() const;
  DecodingTotals looked_up_without_loops() const;
};

/// `drafter` null measures plain decoding and prompt lookup alone. `progress` is told after every
/// prompt.
Result<Evaluation> evaluate_prompts(
    Context& context, Target& target, Drafter* drafter,
    const std::vector<std::vector<int32_t>>& prompts, const EvaluationOptions& options,
    const std::function<void(const Evaluation&)>& progress = nullptr);

/// True if some 8-gram of `tokens` occurs three times or more.
bool answer_loops(const std::vector<int32_t>& tokens);

/// A table for people, and the same for programs (docs/formats.md).
std::string evaluation_table(const Evaluation& evaluation);
nlohmann::ordered_json evaluation_json(const Evaluation& evaluation);

}  // namespace percheron
