#include "data/epoch_plan.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "base/hash.h"
#include "base/random.h"
#include "base/units.h"
#include "data/packer.h"
#include "data/padded_batches.h"
#include "data/token_shard.h"

namespace percheron {
namespace {

Status nothing_left(const SampleSelection& selection, int64_t samples) {
  return invalid_argument("none of the " + format_count(static_cast<uint64_t>(samples)) +
                          " samples can be trained on: " +
                          format_count(static_cast<uint64_t>(selection.too_long_skipped)) +
                          " are longer than data.token_budget, " +
                          format_count(static_cast<uint64_t>(selection.unsupervised_dropped)) +
                          " have no supervised token");
}

// Applies the rules to samples 0 .. count - 1. `length(i)` gives tokens, `supervised(i, n)` says
// whether any of the first n is supervised, `name(i)` describes the sample.
template <class Length, class Supervised, class Name>
Result<SampleSelection> select(int64_t count, const PlanOptions& options, Length length,
                               Supervised supervised, Name name) {
  if (options.token_budget < 1 || options.token_budget > std::numeric_limits<int32_t>::max())
    return invalid_argument("data.token_budget is " + std::to_string(options.token_budget) +
                            ", expected 1 to 2147483647");
  if (count > std::numeric_limits<uint32_t>::max())
    return invalid_argument("the data set has " + format_count(static_cast<uint64_t>(count)) +
                            " samples, at most 4,294,967,295 are supported");
  SampleSelection selection;
  int64_t first_too_long = -1, too_long = 0;
  for (int64_t i = 0; i < count; ++i) {
    int64_t used = length(i);
    if (used > options.token_budget) {
      if (too_long++ == 0) first_too_long = i;
      if (options.too_long == TooLong::kSkip) {
        ++selection.too_long_skipped;
        continue;
      }
      used = options.token_budget;
    }
    if (options.unsupervised == Unsupervised::kDrop && !supervised(i, used)) {
      ++selection.unsupervised_dropped;
      continue;
    }
    if (used < length(i)) ++selection.truncated;
    selection.samples.push_back(static_cast<uint32_t>(i));
    selection.lengths.push_back(static_cast<int32_t>(used));
    selection.tokens += used;
  }
  if (too_long > 0 && options.too_long == TooLong::kRefuse)
    return invalid_argument(
        format_count(static_cast<uint64_t>(too_long)) + " of " +
        format_count(static_cast<uint64_t>(count)) + " samples are longer than data.token_budget " +
        std::to_string(options.token_budget) + ", the first is " + name(first_too_long) + " with " +
        std::to_string(length(first_too_long)) +
        " tokens; raise the budget or set data.too_long to truncate or skip");
  if (selection.samples.empty()) return nothing_left(selection, count);
  return selection;
}

BatchLimits batch_limits(const PlanOptions& options) {
  return {options.token_budget, options.batch_samples_max};
}

}  // namespace

Result<SampleSelection> select_samples(const TokenDataset& dataset, const PlanOptions& options) {
  const auto supervised_within = [&](int64_t i, int64_t used) {
    if (used == dataset.length(i)) return dataset.supervised(i) > 0;
    const auto mask = dataset.mask(i).first(static_cast<size_t>(used));
    return std::find(mask.begin(), mask.end(), 1) != mask.end();
  };
  return select(
      dataset.samples(), options, [&](int64_t i) { return dataset.length(i); }, supervised_within,
      [&](int64_t i) { return dataset.describe(i); });
}

Result<SampleSelection> select_samples(std::span<const int32_t> lengths,
                                       const PlanOptions& options) {
  return select(
      static_cast<int64_t>(lengths.size()), options,
      [&](int64_t i) { return lengths[static_cast<size_t>(i)]; },
      [](int64_t, int64_t used) { return used > 0; },
      [](int64_t i) { return "sample " + std::to_string(i); });
}

Status resolve_buckets(const SampleSelection& selection, PlanOptions& options) {
  if (options.order != EpochOrder::kBucketed) return ok_status();
  if (options.buckets < 1 || options.buckets > kBucketsMax)
    return invalid_argument("data.buckets is " + std::to_string(options.buckets) +
                            ", expected 1 to " + std::to_string(kBucketsMax));
  PERCHERON_ASSIGN_OR_RETURN(const LengthHistogram lengths,
                             LengthHistogram::make(selection.lengths));
  const BatchLimits limits = batch_limits(options);
  PERCHERON_RETURN_IF_ERROR(check_limits(lengths, limits));
  options.bucket_bounds =
      optimal_bounds(lengths, PaddingModel::kExpectedMaximum, limits, options.buckets);
  return ok_status();
}

std::string_view epoch_order_name(EpochOrder order) {
  switch (order) {
    case EpochOrder::kPacked: return "packed";
    case EpochOrder::kSorted: return "sorted";
    case EpochOrder::kShuffled: return "shuffled";
    case EpochOrder::kBucketed: return "bucketed";
  }
  return "";
}

EpochPlan EpochPlan::make(const SampleSelection& selection, const PlanOptions& options,
                          int64_t epoch) {
  PERCHERON_CHECK(selection.samples.size() == selection.lengths.size(),
                  "a selection has one length per sample");
  // Samples and lengths are shuffled together: looked up later, each would be a cache miss.
  std::vector<Draw> draws(selection.samples.size());
  for (size_t i = 0; i < draws.size(); ++i) draws[i] = {selection.samples[i], selection.lengths[i]};
  EpochPlan plan;
  plan.epoch_ = epoch;
  plan.token_budget_ = options.token_budget;
  plan.padded_ = is_padded(options.order);
  plan.sample_tokens_ = selection.tokens;
  Random random = Random::keyed(options.seed, "epoch order", static_cast<uint64_t>(epoch));
  const BatchLimits limits = batch_limits(options);
  switch (options.order) {
    case EpochOrder::kPacked:
      shuffle(std::span(draws), random);
      plan.take_packed(draws, options.token_budget);
      break;
    case EpochOrder::kSorted: plan.take_padded(sorted_batches(std::move(draws), limits)); break;
    case EpochOrder::kShuffled:
      plan.take_padded(shuffled_batches(std::move(draws), limits, random));
      break;
    case EpochOrder::kBucketed:
      PERCHERON_CHECK(!options.bucket_bounds.empty(), "resolve_buckets() comes before make()");
      plan.take_padded(bucketed_batches(draws, limits, options.bucket_bounds, random));
      break;
  }
  return plan;
}

void EpochPlan::take_packed(std::span<const Draw> draws, int64_t token_budget) {
  order_.reserve(draws.size());
  OpenBins bins(token_budget, draws.size());
  const auto close = [&](const OpenBins::Bin& bin) {
    for (uint32_t draw = bin.first;; draw = bins.next(draw)) {
      order_.push_back(draws[draw].sample);
      if (draw == bin.last) break;
    }
    offsets_.push_back(static_cast<int64_t>(order_.size()));
    tokens_.push_back(static_cast<int32_t>(token_budget - bin.room));
  };
  for (size_t draw = 0; draw < draws.size(); ++draw) {
    const auto full = bins.add(static_cast<uint32_t>(draw), draws[draw].length);
    if (full) close(*full);
  }
  while (const auto rest = bins.take_oldest()) close(*rest);
}

void EpochPlan::take_padded(const PaddedBatches& batches) {
  offsets_ = batches.offsets;
  order_.resize(batches.draws.size());
  std::transform(batches.draws.begin(), batches.draws.end(), order_.begin(),
                 [](const Draw& draw) { return draw.sample; });
  tokens_.resize(batches.longest.size());
  for (size_t b = 0; b < tokens_.size(); ++b) {
    tokens_[b] =
        static_cast<int32_t>((offsets_[b + 1] - offsets_[b]) * int64_t{batches.longest[b]});
  }
}

std::span<const uint32_t> EpochPlan::samples(int64_t index) const {
  PERCHERON_CHECK(0 <= index && index < micro_batches(), "micro-batch index outside the epoch");
  const auto begin = static_cast<size_t>(offsets_[static_cast<size_t>(index)]);
  const auto end = static_cast<size_t>(offsets_[static_cast<size_t>(index) + 1]);
  return std::span(order_).subspan(begin, end - begin);
}

int64_t EpochPlan::total_tokens() const {
  return std::accumulate(tokens_.begin(), tokens_.end(), int64_t{0});
}

double EpochPlan::fill() const {
  if (micro_batches() == 0) return 0;
  return static_cast<double>(total_tokens()) /
         (static_cast<double>(token_budget_) * static_cast<double>(micro_batches()));
}

double EpochPlan::efficiency() const {
  if (micro_batches() == 0) return 1;
  return static_cast<double>(sample_tokens_) / static_cast<double>(total_tokens());
}

std::string EpochPlan::hash() const {
  ContentHash hash;
  hash.add(std::as_bytes(std::span(&epoch_, 1)));
  hash.add(std::as_bytes(std::span(offsets_)));
  hash.add(std::as_bytes(std::span(order_)));
  hash.add(std::as_bytes(std::span(tokens_)));
  return hash.hex();
}

MicroBatch make_micro_batch(const TokenDataset& dataset, const EpochPlan& plan, int64_t index) {
  const auto size = static_cast<size_t>(plan.tokens(index));
  const std::span<const uint32_t> samples = plan.samples(index);
  // Only a sample that was cut is longer than the whole micro-batch, and then it is alone in it.
  const size_t longest = plan.padded() ? size / samples.size() : size;
  MicroBatch batch;
  batch.id = {plan.epoch(), index};
  batch.token_ids.reserve(size);
  batch.loss_mask.reserve(size);
  batch.offsets = {0};
  for (const uint32_t sample : samples) {
    const auto tokens = dataset.tokens(sample);
    const auto mask = dataset.mask(sample);
    const size_t used = std::min(tokens.size(), longest);
    batch.token_ids.insert(batch.token_ids.end(), tokens.begin(), tokens.begin() + used);
    batch.loss_mask.insert(batch.loss_mask.end(), mask.begin(), mask.begin() + used);
    if (plan.padded()) {
      batch.token_ids.insert(batch.token_ids.end(), longest - used, tokens[used - 1]);
      batch.loss_mask.insert(batch.loss_mask.end(), longest - used, uint8_t{0});
      batch.padding.push_back(static_cast<int32_t>(longest - used));
    }
    batch.offsets.push_back(static_cast<int32_t>(batch.tokens()));
    batch.sample_ids.push_back(sample);
  }
  PERCHERON_CHECK(batch.tokens() == plan.tokens(index), "the plan was made for another data set");
  return batch;
}

}  // namespace percheron
