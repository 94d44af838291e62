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
  GenerationRequest request;
  int64_t prefilled = 0;  // prompt tokens that are in the cache
  int64_t new_tokens_max = 0;
  Generated answer;
};

class Generator {
 public:
  Generator(Context& context, Target& target, GenerationClient& client,
            const GenerateOptions& options)
      : context_(context), target_(target), client_(client), options_(options) {}

  Status run(const std::function<void(int64_t)>& progress);

 private:
  Status make_cache();
  void admit_waiting();
  bool admit(size_t slot, GenerationClient::Wait wait);
  Status plan_pass();
  Status grow_cache(int64_t needed);
  Status run_pass();
  Status pick(ConstTensorView states);
  Status sample(ConstTensorView states);
  void take(size_t choice, int32_t token);

  Context& context_;
  Target& target_;
  GenerationClient& client_;
  const GenerateOptions& options_;
  std::unique_ptr<KvCache> cache_;
  std::vector<std::optional<Sequence>> slots_;
  size_t in_flight_ = 0;

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
  if (options.context_max < 0 || options.cache_begin < 1) {
    return invalid_argument(
        fmt::format("context_max is {} and cache_begin {}: they must be at least 0 and at least 1",
                    options.context_max, options.cache_begin));
  }
  if (!std::isfinite(options.temperature) || options.temperature < 0) {
    return invalid_argument(fmt::format(
        "temperature is {}, it must be 0 (greedy) or a positive number", options.temperature));
  }
  return ok_status();
}

// Why a prompt can't be answered; ok if it can.
Status check_prompt(std::span<const int32_t> prompt, int64_t vocab_size, int64_t context_max) {
  if (prompt.empty()) return invalid_argument("the prompt is empty");
  for (const int32_t id : prompt) {
    if (id < 0 || id >= vocab_size) {
      return invalid_argument(fmt::format(
          "the prompt holds token {}, outside the target's vocabulary of {}", id, vocab_size));
    }
  }
  if (context_max > 0 && static_cast<int64_t>(prompt.size()) >= context_max) {
    return resource_exhausted(
        fmt::format("the prompt has {} tokens, which leaves no room for an answer: prompt and "
                    "answer may have {}",
                    prompt.size(), context_max));
  }
  return ok_status();
}

Status Generator::make_cache() {
  int64_t length = options_.cache_begin;
  if (options_.context_max > 0) length = std::min(length, options_.context_max);
  PERCHERON_ASSIGN_OR_RETURN(
      cache_, KvCache::make(context_.device, target_.config(), options_.slots, length,
                            target_.compute_dtype()));
  slots_.resize(static_cast<size_t>(options_.slots));
  return ok_status();
}

void Generator::admit_waiting() {
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].has_value()) continue;
    const auto wait = in_flight_ == 0 ? GenerationClient::Wait::kYes : GenerationClient::Wait::kNo;
    if (!admit(s, wait)) return;
  }
}

// Fills a free slot. False when there is no prompt for it.
bool Generator::admit(size_t slot, GenerationClient::Wait wait) {
  while (std::optional<GenerationRequest> request = client_.next(wait)) {
    const Status fits =
        check_prompt(request->prompt, target_.config().vocab_size, options_.context_max);
    if (!fits.ok()) {
      client_.refused(request->id, fits);
      continue;
    }
    Sequence sequence;
    sequence.new_tokens_max = options_.new_tokens_max;
    if (options_.context_max > 0) {
      const int64_t room = options_.context_max - static_cast<int64_t>(request->prompt.size());
      sequence.new_tokens_max = std::min(sequence.new_tokens_max, room);
    }
    sequence.request = std::move(*request);
    slots_[slot] = std::move(sequence);
    cache_->used[slot] = 0;
    ++in_flight_;
    return true;
  }
  return false;
}

// One row for every sequence that is past its prompt, then prompt tokens up to the limit. A prompt
// may take several passes.
Status Generator::plan_pass() {
  pass_ = {};
  pass_.offsets.push_back(0);
  choosing_slots_.clear();
  choosing_rows_.clear();
  int64_t budget = kPrefillTokens;
  int64_t length = 0;  // that the longest sequence has after this pass
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (!slots_[s].has_value()) continue;
    Sequence& sequence = *slots_[s];
    const std::vector<int32_t>& prompt = sequence.request.prompt;
    const int64_t waiting = static_cast<int64_t>(prompt.size()) - sequence.prefilled;
    const int64_t count = waiting == 0 ? 1 : std::min(waiting, budget);
    if (count == 0) continue;
    if (waiting == 0) {
      pass_.token_ids.push_back(sequence.answer.tokens.back());
    } else {
      const auto first = prompt.begin() + sequence.prefilled;
      pass_.token_ids.insert(pass_.token_ids.end(), first, first + count);
      sequence.prefilled += count;
      budget -= count;
    }
    length = std::max(length, cache_->used[s] + count);
    pass_.offsets.push_back(static_cast<int32_t>(pass_.token_ids.size()));
    pass_.cache_slots.push_back(static_cast<int32_t>(s));
    if (count < waiting) continue;
    choosing_slots_.push_back(static_cast<int32_t>(s));
    choosing_rows_.push_back(pass_.offsets.back() - 1);
  }
  return length <= cache_->length() ? ok_status() : grow_cache(length);
}

// By doubling, so that a token costs one copy at most on average.
Status Generator::grow_cache(int64_t needed) {
  int64_t length = 2 * cache_->length();
  if (options_.context_max > 0) length = std::min(length, options_.context_max);
  const Status grown = cache_->grow(context_, std::max(length, needed));
  if (grown.code() != StatusCode::kResourceExhausted) return grown;
  return resource_exhausted(grown.message() + "; use fewer slots or a smaller context");
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
      const Sequence& sequence =
          *slots_[static_cast<size_t>(choosing_slots_[static_cast<size_t>(row)])];
      Random random = Random::keyed(options_.seed, "sample", sequence.request.sample_key,
                                    sequence.answer.tokens.size());
      const std::span<const float> row_logits(logits.data() + (row - begin) * vocab_size,
                                              static_cast<size_t>(vocab_size));
      chosen_[static_cast<size_t>(row)] =
          pick_token(row_logits, options_.temperature, random.uniform());
    }
  }
  return ok_status();
}

// Appends a chosen token, and hands the answer over if that ended it.
void Generator::take(size_t choice, int32_t token) {
  std::optional<Sequence>& slot = slots_[static_cast<size_t>(choosing_slots_[choice])];
  Generated& answer = slot->answer;
  answer.tokens.push_back(token);
  const auto& stops = options_.stop_token_ids;
  answer.stopped = std::find(stops.begin(), stops.end(), token) != stops.end();
  if (!answer.stopped && static_cast<int64_t>(answer.tokens.size()) < slot->new_tokens_max) return;
  client_.answered(slot->request.id, std::move(answer));
  slot.reset();
  --in_flight_;
}

Status Generator::run(const std::function<void(int64_t)>& progress) {
  PERCHERON_RETURN_IF_ERROR(make_cache());
  std::optional<DecodingScope> decoding;
  if (cache_->slots() <= kDecodingSlotsMax) decoding.emplace(context_);
  for (;;) {
    admit_waiting();
    if (client_.cancelled()) return cancelled("the rest of the answers is not wanted any more");
    if (in_flight_ == 0) return ok_status();
    PERCHERON_RETURN_IF_ERROR(plan_pass());
    PERCHERON_RETURN_IF_ERROR(run_pass());
    for (size_t i = 0; i < choosing_slots_.size(); ++i) take(i, chosen_[i]);
    if (progress && !choosing_slots_.empty()) {
      progress(static_cast<int64_t>(choosing_slots_.size()));
    }
  }
}

/// Prompts that are all there from the start.
class ListClient : public GenerationClient {
 public:
  explicit ListClient(std::span<const std::vector<int32_t>> prompts)
      : prompts_(prompts), answers_(prompts.size()) {}

  std::optional<GenerationRequest> next(Wait) override {
    if (next_ == prompts_.size()) return std::nullopt;
    const size_t index = next_++;
    return GenerationRequest{index, index, prompts_[index]};
  }
  void answered(uint64_t id, Generated answer) override { answers_[id] = std::move(answer); }
  void refused(uint64_t id, const Status& why) override {
    PERCHERON_CHECK(false, fmt::format("prompt {} was checked before: {}", id, why.message()));
  }
  std::vector<Generated> take_answers() { return std::move(answers_); }

 private:
  std::span<const std::vector<int32_t>> prompts_;
  std::vector<Generated> answers_;
  size_t next_ = 0;
};

}  // namespace

Status generate(Context& context, Target& target, GenerationClient& client,
                const GenerateOptions& options, const std::function<void(int64_t)>& progress) {
  PERCHERON_RETURN_IF_ERROR(check_options(options));
  return Generator(context, target, client, options).run(progress);
}

Result<std::vector<Generated>> generate(Context& context, Target& target,
                                        std::span<const std::vector<int32_t>> prompts,
                                        const GenerateOptions& options,
                                        const std::function<void(int64_t)>& progress) {
  PERCHERON_RETURN_IF_ERROR(check_options(options));
  size_t longest = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    longest = std::max(longest, prompts[i].size());
    const Status fits = check_prompt(prompts[i], target.config().vocab_size, options.context_max);
    if (!fits.ok()) return fits.with_context(fmt::format("prompt {}", i));
  }
  if (prompts.empty()) return std::vector<Generated>();
  GenerateOptions for_list = options;
  for_list.slots = std::min(options.slots, static_cast<int64_t>(prompts.size()));
  for_list.cache_begin = static_cast<int64_t>(longest) + options.new_tokens_max;
  ListClient client(prompts);
  PERCHERON_RETURN_IF_ERROR(generate(context, target, client, for_list, progress));
  return client.take_answers();
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
