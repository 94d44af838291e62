#include "model/speculative.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/random.h"
#include "kernels/ops.h"
#include "model/round_keeper.h"

namespace percheron {
namespace {

/// Adds the time of its life to a sum.
class Timed {
 public:
  Timed(const Clock& clock, double& seconds)
      : clock_(clock), seconds_(seconds), start_(clock.monotonic_ns()) {}
  ~Timed() { seconds_ += 1e-9 * static_cast<double>(clock_.monotonic_ns() - start_); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  const Clock& clock_;
  double& seconds_;
  int64_t start_;
};

std::vector<double> probabilities(std::span<const float> logits, double temperature) {
  std::vector<double> p(logits.begin(), logits.end());
  const double largest = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp((x - largest) / temperature);
  for (double& x : p) x /= sum;
  return p;
}

// Draws from p without `excluded`, renormalised.
int32_t draw_without(const std::vector<double>& p, int32_t excluded, double uniform) {
  double rest = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (static_cast<int32_t>(i) != excluded) rest += p[i];
  }
  double left = uniform * rest;
  int32_t last = -1;
  for (size_t i = 0; i < p.size(); ++i) {
    if (static_cast<int32_t>(i) == excluded || p[i] == 0) continue;
    last = static_cast<int32_t>(i);
    if (left < p[i]) break;
    left -= p[i];
  }
  return last;
}

/// One sequence on its way: the target's cache, the states it captured, and the output.
class Decoder {
 public:
  Decoder(Context& context, Target& target, DraftSource* source, const GenerateOptions& options,
          int64_t draft_length, const Clock& clock)
      : context_(context),
        target_(target),
        source_(source),
        options_(options),
        draft_length_(source == nullptr ? 0 : draft_length),
        clock_(clock),
        keeper_(options.new_tokens_max, options.stop_token_ids) {}

  Result<SpeculativeResult> run(std::span<const int32_t> prompt);

 private:
  Status prefill(std::span<const int32_t> prompt);
  Status round();
  Result<std::vector<int32_t>> verify(std::span<const int32_t> draft);
  Status forward(std::span<const int32_t> tokens, TensorView captured, TensorView last);
  Result<std::vector<int32_t>> choose(ConstTensorView last);
  Result<std::vector<int32_t>> sample(ConstTensorView last, std::span<const int32_t> draft);
  bool captures() const { return states() > 0; }
  int64_t states() const {
    const TargetOptions& options = target_.options();
    return static_cast<int64_t>(options.capture.size()) + (options.capture_last ? 1 : 0);
  }

  Context& context_;
  Target& target_;
  DraftSource* source_;
  const GenerateOptions& options_;
  int64_t draft_length_;
  const Clock& clock_;
  RoundKeeper keeper_;
  SpeculativeResult result_;
  std::unique_ptr<KvCache> cache_;
  TensorView captured_;        // of the rows run last; arena memory of run()
  int64_t fresh_ = 0;          // its rows that are verified and that the drafter has not seen
  std::vector<int32_t> next_;  // the token after each of these rows
};

Status Decoder::forward(std::span<const int32_t> tokens, TensorView captured, TensorView last) {
  PackedSequences rows;
  rows.token_ids.assign(tokens.begin(), tokens.end());
  rows.offsets = {0, static_cast<int32_t>(tokens.size())};
  rows.cache_slots = {0};
  ++result_.target_calls;
  return target_.forward(context_, rows, cache_.get(), captured, last);
}

Result<std::vector<int32_t>> Decoder::choose(ConstTensorView last) {
  const TensorView chosen = context_.arena.take(DType::kI32, {last.dim(0)});
  target_.top1(context_, last, chosen);
  std::vector<int32_t> tokens(static_cast<size_t>(last.dim(0)));
  context_.device.copy_bytes(context_.stream, tokens.data(), chosen.data(), chosen.bytes());
  PERCHERON_RETURN_IF_ERROR(context_.stream.wait_idle());
  return tokens;
}

// Accepts draft d with probability p(d), else draws from p without d: the output is distributed as
// the target's own. `last` holds one row more than `draft`.
Result<std::vector<int32_t>> Decoder::sample(ConstTensorView last, std::span<const int32_t> draft) {
  const auto vocab = static_cast<size_t>(target_.config().vocab_size);
  const TensorView logits =
      context_.arena.take(DType::kF32, {last.dim(0), target_.config().vocab_size});
  target_.logits(context_, last, logits);
  std::vector<float> host(static_cast<size_t>(logits.elements()));
  context_.device.copy_bytes(context_.stream, host.data(), logits.data(), logits.bytes());
  PERCHERON_RETURN_IF_ERROR(context_.stream.wait_idle());
  std::vector<int32_t> tokens;
  for (size_t row = 0; row <= draft.size(); ++row) {
    // The same key as plain sampling of prompt 0, so that rounds without drafts equal it.
    Random random = Random::keyed(options_.seed, "sample", 0, keeper_.tokens().size() + row);
    const std::span<const float> row_logits = std::span(host).subspan(row * vocab, vocab);
    if (row == draft.size()) {
      tokens.push_back(pick_token(row_logits, options_.temperature, random.uniform()));
      break;
    }
    const std::vector<double> p = probabilities(row_logits, options_.temperature);
    const bool accepted = random.uniform() < p[static_cast<size_t>(draft[row])];
    tokens.push_back(accepted ? draft[row] : draw_without(p, draft[row], random.uniform()));
    if (!accepted) break;
  }
  return tokens;
}

Status Decoder::prefill(std::span<const int32_t> prompt) {
  const Timed timed(clock_, result_.prefill_seconds);
  const auto count = static_cast<int64_t>(prompt.size());
  PERCHERON_ASSIGN_OR_RETURN(
      cache_,
      KvCache::make(context_.device, target_.config(), 1,
                    count + options_.new_tokens_max + draft_length_ + 1, target_.compute_dtype()));
  if (source_ != nullptr && captures()) {
    captured_ = context_.arena.take(
        target_.compute_dtype(),
        {std::max(count, draft_length_ + 1), states(), target_.config().hidden_size});
  }
  const Arena::Scope scope(context_.arena);
  const TensorView last = context_.arena.take(DType::kF32, {count, target_.config().hidden_size});
  PERCHERON_RETURN_IF_ERROR(
      forward(prompt, captured_.present() ? captured_.rows(0, count) : TensorView(), last));
  const ConstTensorView row = last.rows(count - 1, count);
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int32_t> first,
                             options_.temperature > 0 ? sample(row, {}) : choose(row));
  keeper_.begin(first[0]);
  fresh_ = count;
  next_.assign(prompt.begin() + 1, prompt.end());
  next_.push_back(first[0]);
  return ok_status();
}

// The target's tokens after the last one of the output and after each draft, up to the first that
// is not the draft. Cuts the cache back to what is verified.
Result<std::vector<int32_t>> Decoder::verify(std::span<const int32_t> draft) {
  std::vector<int32_t> tokens = {keeper_.tokens().back()};
  tokens.insert(tokens.end(), draft.begin(), draft.end());
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t before = cache_->used[0];
  const Arena::Scope scope(context_.arena);
  const TensorView last = context_.arena.take(DType::kF32, {count, target_.config().hidden_size});
  PERCHERON_RETURN_IF_ERROR(
      forward(tokens, captured_.present() ? captured_.rows(0, count) : TensorView(), last));
  std::vector<int32_t> verified;
  if (options_.temperature > 0) {
    PERCHERON_ASSIGN_OR_RETURN(verified, sample(last, draft));
  } else {
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<int32_t> chosen, choose(last));
    const std::span<const int32_t> kept = verify_greedily(draft, chosen);
    verified.assign(kept.begin(), kept.end());
  }
  cache_->used[0] = before + static_cast<int64_t>(verified.size());
  return verified;
}

Status Decoder::round() {
  std::vector<int32_t> draft;
  if (source_ != nullptr) {
    const Timed timed(clock_, result_.draft_seconds);
    const ConstTensorView features =
        captured_.present() ? ConstTensorView(captured_.rows(0, fresh_)) : ConstTensorView();
    PERCHERON_ASSIGN_OR_RETURN(draft, source_->draft(context_, features, next_, draft_length_));
    PERCHERON_CHECK(static_cast<int64_t>(draft.size()) <= draft_length_,
                    "more was drafted than asked for");
  }
  const Timed timed(clock_, result_.verify_seconds);
  PERCHERON_ASSIGN_OR_RETURN(next_, verify(draft));
  fresh_ = static_cast<int64_t>(next_.size());
  keeper_.add_round(static_cast<int64_t>(draft.size()), next_);
  return ok_status();
}

Result<SpeculativeResult> Decoder::run(std::span<const int32_t> prompt) {
  const Arena::Scope scope(context_.arena);
  const DecodingScope decoding(context_);
  if (source_ != nullptr) source_->reset();
  PERCHERON_RETURN_IF_ERROR(prefill(prompt));
  while (!keeper_.done()) PERCHERON_RETURN_IF_ERROR(round());
  result_.tokens = keeper_.tokens();
  result_.rounds = keeper_.rounds();
  result_.stopped = keeper_.stopped();
  return std::move(result_);
}

Status check_request(const Target& target, std::span<const int32_t> prompt,
                     const GenerateOptions& options, int64_t draft_length) {
  if (prompt.empty()) return invalid_argument("an empty prompt can't be continued");
  for (const int32_t id : prompt) {
    if (id >= 0 && id < target.config().vocab_size) continue;
    return invalid_argument(
        fmt::format("the prompt holds token {}, outside the target's vocabulary "
                    "of {}",
                    id, target.config().vocab_size));
  }
  if (options.new_tokens_max < 1 || options.new_tokens_max > kNewTokensMax) {
    return invalid_argument(fmt::format("new_tokens_max is {}, it must be from 1 to {}",
                                        options.new_tokens_max, kNewTokensMax));
  }
  if (!std::isfinite(options.temperature) || options.temperature < 0) {
    return invalid_argument(fmt::format(
        "temperature is {}, it must be 0 (greedy) or a positive number", options.temperature));
  }
  if (draft_length < 0 || draft_length > kDraftLengthMax) {
    return invalid_argument(
        fmt::format("draft length is {}, it must be from 0 to {}", draft_length, kDraftLengthMax));
  }
  return ok_status();
}

}  // namespace

Result<SpeculativeResult> decode(Context& context, Target& target, DraftSource* source,
                                 std::span<const int32_t> prompt, const GenerateOptions& options,
                                 int64_t draft_length, const Clock& clock) {
  PERCHERON_RETURN_IF_ERROR(check_request(target, prompt, options, draft_length));
  Decoder decoder(context, target, draft_length == 0 ? nullptr : source, options, draft_length,
                  clock);
  return decoder.run(prompt);
}

}  // namespace percheron
