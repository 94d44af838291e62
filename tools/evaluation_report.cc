#include <fmt/format.h>

#include "tools/evaluation.h"

namespace percheron {
namespace {

std::string row(const std::string& name, const DecodingTotals& totals, double plain_rate) {
  std::string positions;
  for (const double share : totals.counts.accepted_per_position())
    positions += fmt::format(" {:.3f}", share);
  const double rate = totals.tokens_per_second();
  return fmt::format("{:<28}{:>10.3f}{:>9}{:>9}{:>10.1f}{:>8.2f}x  {}\n", name,
                     totals.counts.acceptance_length(), totals.tokens, totals.target_calls, rate,
                     plain_rate > 0 ? rate / plain_rate : 0.0, positions);
}

nlohmann::ordered_json totals_json(const DecodingTotals& totals) {
  nlohmann::ordered_json json{{"acceptance_length", totals.counts.acceptance_length()},
                              {"accepted_per_position", totals.counts.accepted_per_position()},
                              {"rounds", totals.counts.rounds()},
                              {"drafted", totals.counts.drafted()},
                              {"accepted", totals.counts.accepted()},
                              {"tokens", totals.tokens},
                              {"target_calls", totals.target_calls},
                              {"tokens_per_second", totals.tokens_per_second()},
                              {"prefill_seconds", totals.prefill_seconds},
                              {"decode_seconds", totals.decode_seconds},
                              {"draft_seconds", totals.draft_seconds}};
  return json;
}

int64_t looping(const Evaluation& evaluation) {
  int64_t count = 0;
  for (const EvaluatedPrompt& prompt : evaluation.prompts) count += prompt.loops;
  return count;
}

}  // namespace

std::string evaluation_table(const Evaluation& evaluation) {
  const DecodingTotals plain = evaluation.plain();
  const double rate = plain.tokens_per_second();
  std::string out = fmt::format(
      "{} prompts, temperature {}, draft length {}, at most {} new tokens; the bonus token is "
      "counted\n"
      "thinking: {}\n"
      "{:<28}{:>10}{:>9}{:>9}{:>10}{:>9}   accepted per position\n",
      evaluation.prompts.size(), evaluation.options.generate.temperature,
      evaluation.options.draft_length, evaluation.options.generate.new_tokens_max,
      evaluation.options.thinking, "", "acceptance", "tokens", "calls", "tokens/s", "speed");
  out += row("target alone", plain, rate);
  const DecodingTotals drafted = evaluation.drafted();
  const bool has_drafter = drafted.counts.rounds() > 0;
  if (has_drafter) out += row("drafter", drafted, rate);
  if (evaluation.options.with_lookup) out += row("prompt lookup", evaluation.looked_up(), rate);
  if (const int64_t loops = looping(evaluation); loops > 0) {
    out += fmt::format("{} of {} answers loop (an 8-gram three times or more); without them:\n",
                       loops, evaluation.prompts.size());
    if (has_drafter) out += row("drafter", evaluation.drafted_without_loops(), rate);
    if (evaluation.options.with_lookup)
      out += row("prompt lookup", evaluation.looked_up_without_loops(), rate);
  }
  if (has_drafter && evaluation.options.generate.temperature == 0) {
    out +=
        fmt::format("{} of {} drafted answers equal the target's own, token for token\n",
                    evaluation.prompts.size() - static_cast<size_t>(evaluation.differing_answers),
                    evaluation.prompts.size());
  }
  return out;
}

nlohmann::ordered_json evaluation_json(const Evaluation& evaluation) {
  const DecodingTotals drafted = evaluation.drafted();
  nlohmann::ordered_json json{
      {"prompts", evaluation.prompts.size()},
      {"temperature", evaluation.options.generate.temperature},
      {"draft_length", evaluation.options.draft_length},
      {"new_tokens_max", evaluation.options.generate.new_tokens_max},
      {"thinking", evaluation.options.thinking},
      {"bonus_counted", true},
      {"looping_answers", looping(evaluation)},
      {"differing_answers", evaluation.differing_answers},
      {"acceptance_length", drafted.counts.acceptance_length()},
      {"accepted_per_position", drafted.counts.accepted_per_position()},
      {"plain", totals_json(evaluation.plain())},
      {"drafter", totals_json(drafted)},
      {"drafter_without_loops", totals_json(evaluation.drafted_without_loops())}};
  if (evaluation.options.with_lookup) {
    json["lookup"] = totals_json(evaluation.looked_up());
    json["lookup_without_loops"] = totals_json(evaluation.looked_up_without_loops());
  }
  return json;
}

}  // namespace percheron
