#include "model/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/random.h"
#include "kernels/ops.h"

namespace percheron {
namespace {

// Prompt tokens that one pass may add, and rows whose logits are on the host together.
constexpr int64_t kPrefillTokens = 2048;
constexpr int64_t kSampleRows = 32;
// Up to this many sequences in flight a pass is bound by reading the weights.
constexpr int64_t kDecodingSlotsMax = 16;

// One prompt in flight.
struct Sequence {
  size_t prompt = 0;      // its index
  int64_t prefilled = 0;  // prompt tokens that are in the cache
};

class Generator {
 public:
  Generator(Context& context, Target& target, std::span<const std::vector<int32_t>> prompts,
            const GenerateOptions& options)
      : context_(context),
        target_(target),
        prompts_(prompts),
        options_(options),
        results_(prompts.size()) {}

  Result<std::vector<Generated>> run(const std::function<void(int64_t)>& progress);

 private:
  Status make_cache();
  void plan_pass();
  void admit_waiting();
  Status run_pass();
  Status pick(ConstTensorView states);
  Status sample(ConstTensorView states);
  bool take(size_t choice, int32_t token);

  Context& context_;
  Target& target_;
  std::span<const std::vector<int32_t>> prompts_;
  const GenerateOptions& options_;
  std::vector<Generated> results_;
  std::unique_ptr<KvCache> cache_;
  std::vector<std::optional<Sequence>> slots_;
  size_t next_prompt_ = 0;

  PackedSequences pass_;
  std::vector<int32_t> choosing_slots_;  // the slots that choose a token after this pass,
  std::vector<int32_t> choosing_rows_;   // and their last rows
  std::vector<int32_t> chosen_;
};

Status check_options(const GenerateOptions& options) {
  if (options.new_tokens_max < 1 || options.new_tokens_max > kNewTokensMax) {
    return invalid_argument(fmt::format("new_tokens_max is {}, it must be from 1 to {}",
                                        options.new_tokens_max, kNewTokensMax));
  }
  if (options.slots < 1) {
    return invalid_argument(fmt::format("slots is {}, at least 1 is needed", options.slots));
  }
  if (!std::isfinite(options.temperature) || options.temperature < 0) {
    return invalid_argument(fmt::format(
        "temperature is {}, it must be 0 (greedy) or a positive number", options.temperature));
  }
  return ok_status();
}

Status check_prompts(std::span<const std::vector<int32_t>> prompts, int64_t vocab_size) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) return invalid_argument(fmt::format("prompt {} is empty", i));
    for (const int32_t id : prompts[i]) {
      if (id < 0 || id >= vocab_size) {
        return invalid_argument(fmt::format(
            "prompt {} holds token {}, outside the target's vocabulary of {}", i, id, vocab_size));
      }
    }
  }
  return ok_status();
}

Status Generator::make_cache() {
  size_t longest = 0;
  for (const auto& prompt : prompts_) longest = std::max(longest, prompt.size());
  const int64_t slots = std::min(options_.slots, static_cast<int64_t>(prompts_.size()));
  const int64_t length = static_cast<int64_t>(longest) + options_.new_tokens_max;
  PERCHERON_ASSIGN_OR_RETURN(cache_, KvCache::make(context_.device, target_.config(), slots, length,
                                                   target_.compute_dtype()));
  slots_.resize(static_cast<size_t>(slots));
  return ok_status();
}

void Generator::admit_waiting() {
  for (size_t s = 0; s < slots_.size() && next_prompt_ < prompts_.size(); ++s) {
    if (slots_[s].has_value()) continue;
    slots_[s] = Sequence{next_prompt_++, 0};
    cache_->used[s] = 0;
  }
}

// One row for every sequence that is past its prompt, then prompt tokens up to the limit. A prompt
// may take several passes.
void Generator::plan_pass() {
  pass_ = {};
  pass_.offsets.push_back(0);
  choosing_slots_.clear();
  choosing_rows_.clear();
  int64_t budget = kPrefillTokens;
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (!slots_[s].has_value()) continue;
    Sequence& sequence = *slots_[s];
    const std::vector<int32_t>& prompt = prompts_[sequence.prompt];
    const int64_t waiting = static_cast<int64_t>(prompt.size()) - sequence.prefilled;
    const int64_t count = waiting == 0 ? 1 : std::min(waiting, budget);
    if (count == 0) continue;
    if (waiting == 0) {
      pass_.token_ids.push_back(results_[sequence.prompt].tokens.back());
    } else {
      const auto first = prompt.begin() + sequence.prefilled;
      pass_.token_ids.insert(pass_.token_ids.end(), first, first + count);
      sequence.prefilled += count;
      budget -= count;
    }
    pass_.offsets.push_back(static_cast<int32_t>(pass_.token_ids.size()));
    pass_.cache_slots.push_back(static_cast<int32_t>(s));
    if (count < waiting) continue;
    choosing_slots_.push_back(static_cast<int32_t>(s));
    choosing_rows_.push_back(pass_.offsets.back() - 1);
  }
}

Status Generator::run_pass() {
  const int64_t count = static_cast<int64_t>(pass_.token_ids.size());
  const int64_t hidden = target_.config().hidden_size;
  const int64_t choices = static_cast<int64_t>(choosing_rows_.size());
  Arena::Scope scope(context_.arena);
  const TensorView last = context_.arena.take(DType::kF32, {count, hidden});
  PERCHERON_RETURN_IF_ERROR(target_.forward(context_, pass_, cache_.get(), {}, last));
  if (choices == 0) return ok_status();
  if (choices == count) return pick(last);
  const TensorView rows = context_.arena.take(DType::kI32, {choices});
  const TensorView states = context_.arena.take(DType::kF32, {choices, hidden});
  context_.device.copy_bytes(context_.stream, rows.data(), choosing_rows_.data(), rows.bytes());
  context_.device.ops().gather_rows(context_, last, rows, states);
  return pick(states);
}

Status Generator::pick(ConstTensorView states) {
  chosen_.assign(choosing_slots_.size(), 0);
  if (options_.temperature > 0) return sample(states);
  const TensorView ids = context_.arena.take(DType::kI32, {states.dim(0)});
  target_.top1(context_, states, ids);
  context_.device.copy_bytes(context_.stream, chosen_.data(), ids.data(), ids.bytes());
  return context_.stream.wait_idle();
}

Status Generator::sample(ConstTensorView states) {
  const int64_t vocab_size = target_.config().vocab_size;
  std::vector<float> logits;
  for (int64_t begin = 0; begin < states.dim(0); begin += kSampleRows) {
    Arena::Scope scope(context_.arena);
    const int64_t end = std::min(states.dim(0), begin + kSampleRows);
    const TensorView chunk = context_.arena.take(DType::kF32, {end - begin, vocab_size});
    target_.logits(context_, states.rows(begin, end), chunk);
    logits.resize(static_cast<size_t>(chunk.elements()));
    context_.device.copy_bytes(context_.stream, logits.data(), chunk.data(), chunk.bytes());
    PERCHERON_RETURN_IF_ERROR(context_.stream.wait_idle());
    for (int64_t row = begin; row < end; ++row) {
      const size_t prompt =
          slots_[static_cast<size_t>(choosing_slots_[static_cast<size_t>(row)])]->prompt;
      Random random =
          Random::keyed(options_.seed, "sample", prompt, results_[prompt].tokens.size());
      const std::span<const float> row_logits(logits.data() + (row - begin) * vocab_size,
                                              static_cast<size_t>(vocab_size));
      chosen_[static_cast<size_t>(row)] =
          pick_token(row_logits, options_.temperature, random.uniform());
    }
  }
  return ok_status();
}

// Appends a chosen token; true when its sequence ended.
bool Generator::take(size_t choice, int32_t token) {
  std::optional<Sequence>& slot = slots_[static_cast<size_t>(choosing_slots_[choice])];
  Generated& result = results_[slot->prompt];
  result.tokens.push_back(token);
  const auto& stops = options_.stop_token_ids;
  result.stopped = std::find(stops.begin(), stops.end(), token) != stops.end();
  if (!result.stopped && static_cast<int64_t>(result.tokens.size()) < options_.new_tokens_max) {
    return false;
  }
  slot.reset();
  return true;
}

Result<std::vector<Generated>> Generator::run(const std::function<void(int64_t)>& progress) {
  PERCHERON_RETURN_IF_ERROR(make_cache());
  std::optional<DecodingScope> decoding;
  if (cache_->slots() <= kDecodingSlotsMax) decoding.emplace(context_);
  int64_t unfinished = static_cast<int64_t>(prompts_.size());
  while (unfinished > 0) {
    admit_waiting();
    plan_pass();
    PERCHERON_RETURN_IF_ERROR(run_pass());
    for (size_t i = 0; i < choosing_slots_.size(); ++i) {
      if (take(i, chosen_[i])) --unfinished;
    }
    if (progress && !choosing_slots_.empty()) {
      progress(static_cast<int64_t>(choosing_slots_.size()));
    }
  }
  return std::move(results_);
}

}  // namespace

Result<std::vector<Generated>> generate(Context& context, Target& target,
                                        std::span<const std::vector<int32_t>> prompts,
                                        const GenerateOptions& options,
                                        const std::function<void(int64_t)>& progress) {
  PERCHERON_RETURN_IF_ERROR(check_options(options));
  PERCHERON_RETURN_IF_ERROR(check_prompts(prompts, target.config().vocab_size));
  if (prompts.empty()) return std::vector<Generated>();
  Generator generator(context, target, prompts, options);
  return generator.run(progress);
}

int32_t pick_token(std::span<const float> logits, double temperature, double uniform) {
  PERCHERON_CHECK(!logits.empty(), "a token is picked from at least one logit");
  const auto best = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return static_cast<int32_t>(best - logits.begin());
  const double largest = *best;
  double sum = 0;
  for (const float logit : logits) sum += std::exp((logit - largest) / temperature);
  // The first token at which the cumulative probability exceeds the draw.
  double rest = uniform * sum;
  int32_t token = 0, likely = 0;
  for (const float logit : logits) {
    const double weight = std::exp((logit - largest) / temperature);
    if (weight > 0) likely = token;
    if (rest < weight) return token;
    rest -= weight;
    ++token;
  }
  return likely;  // Rounding left a little over: the last token that could have been drawn.
}

}  // namespace percheron
