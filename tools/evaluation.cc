#include "tools/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace percheron {
namespace {

constexpr size_t kLoopGram = 8;
constexpr int kLoopRepeats = 3;

template <class Select>
DecodingTotals sum(const Evaluation& evaluation, Select select) {
  DecodingTotals totals;
  for (const EvaluatedPrompt& prompt : evaluation.prompts) {
    if (const SpeculativeResult* result = select(prompt)) totals.add(*result);
  }
  return totals;
}

const SpeculativeResult* if_present(const std::optional<SpeculativeResult>& result) {
  return result ? &*result : nullptr;
}

Result<EvaluatedPrompt> evaluate_prompt(Context& context, Target& target, DraftSource* drafter,
                                        const std::vector<int32_t>& prompt,
                                        const EvaluationOptions& options) {
  EvaluatedPrompt result;
  result.prompt = prompt;
  PERCHERON_ASSIGN_OR_RETURN(result.plain, decode(context, target, nullptr, prompt,
                                                  options.generate, options.draft_length));
  result.loops = answer_loops(result.plain.tokens);
  if (drafter != nullptr) {
    drafter->reset();
    PERCHERON_ASSIGN_OR_RETURN(result.drafted, decode(context, target, drafter, prompt,
                                                      options.generate, options.draft_length));
  }
  if (options.with_lookup) {
    const std::unique_ptr<DraftSource> lookup = make_prompt_lookup(prompt);
    PERCHERON_ASSIGN_OR_RETURN(result.looked_up, decode(context, target, lookup.get(), prompt,
                                                        options.generate, options.draft_length));
  }
  return result;
}

}  // namespace

void DecodingTotals::add(const SpeculativeResult& result) {
  for (const Round& round : result.rounds) counts.add(round);
  tokens += std::max<int64_t>(
      0, static_cast<int64_t>(result.tokens.size()) - 1);  // the first one is the prefill's
  target_calls += result.target_calls;
  prefill_seconds += result.prefill_seconds;
  draft_seconds += result.draft_seconds;
  decode_seconds += result.draft_seconds + result.verify_seconds;
}

void DecodingTotals::add(const DecodingTotals& other) {
  counts.add(other.counts);
  tokens += other.tokens;
  target_calls += other.target_calls;
  prefill_seconds += other.prefill_seconds;
  decode_seconds += other.decode_seconds;
  draft_seconds += other.draft_seconds;
}

DecodingTotals Evaluation::plain() const {
  return sum(*this, [](const EvaluatedPrompt& p) { return &p.plain; });
}
DecodingTotals Evaluation::drafted() const {
  return sum(*this, [](const EvaluatedPrompt& p) { return if_present(p.drafted); });
}
DecodingTotals Evaluation::looked_up() const {
  return sum(*this, [](const EvaluatedPrompt& p) { return if_present(p.looked_up); });
}
DecodingTotals Evaluation::drafted_without_loops() const {
  return sum(*this,
             [](const EvaluatedPrompt& p) { return p.loops ? nullptr : if_present(p.drafted); });
}
DecodingTotals Evaluation::looked_up_without_loops() const {
  return sum(*this,
             [](const EvaluatedPrompt& p) { return p.loops ? nullptr : if_present(p.looked_up); });
}

bool answer_loops(const std::vector<int32_t>& tokens) {
  std::map<std::vector<int32_t>, int> seen;
  for (size_t i = 0; i + kLoopGram <= tokens.size(); ++i) {
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(i);
    if (++seen[std::vector<int32_t>(begin, begin + kLoopGram)] >= kLoopRepeats) return true;
  }
  return false;
}

Result<Evaluation> evaluate_prompts(Context& context, Target& target, Drafter* drafter,
                                    const std::vector<std::vector<int32_t>>& prompts,
                                    const EvaluationOptions& options,
                                    const std::function<void(const Evaluation&)>& progress) {
  if (prompts.empty()) return invalid_argument("there is no prompt to evaluate on");
  size_t longest = 0;
  for (const std::vector<int32_t>& prompt : prompts) longest = std::max(longest, prompt.size());
  const int64_t length_max =
      static_cast<int64_t>(longest) + options.generate.new_tokens_max + options.draft_length + 2;
  std::unique_ptr<DraftSource> source;
  if (drafter != nullptr) {
    PERCHERON_ASSIGN_OR_RETURN(source, make_draft_source(context, *drafter, length_max));
  }
  Evaluation evaluation;
  evaluation.options = options;
  for (const std::vector<int32_t>& prompt : prompts) {
    PERCHERON_ASSIGN_OR_RETURN(EvaluatedPrompt result,
                               evaluate_prompt(context, target, source.get(), prompt, options));
    if (result.drafted && result.drafted->tokens != result.plain.tokens)
      ++evaluation.differing_answers;
    evaluation.prompts.push_back(std::move(result));
    if (progress) progress(evaluation);
  }
  return evaluation;
}

}  // namespace percheron
