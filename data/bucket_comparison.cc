#include "data/bucket_comparison.h"

#include <cmath>
#include <iterator>
#include <utility>

#include "data/epoch_plan.h"
#include "data/plan_statistics.h"

namespace percheron {
namespace {

bool is_published_set(const LengthHistogram& lengths) {
  return lengths.samples() == published::kSamples &&
         std::abs(static_cast<double>(lengths.tokens()) / published::kTokens - 1) < 0.005;
}

// Plans one epoch with the bounds.
void plan_with(const SampleSelection& selection, PlanOptions options, ScoredBounds& scored) {
  options.bucket_bounds = scored.bounds;
  const EpochPlan plan = EpochPlan::make(selection, options, 0);
  scored.planned_batches.resize(scored.bounds.size());
  for (const uint32_t bucket : buckets_of(plan, scored.bounds)) ++scored.planned_batches[bucket];
  scored.planned_efficiency = plan.efficiency();
}

}  // namespace

Result<BucketComparison> compare_buckets(std::span<const int32_t> lengths,
                                         const BatchLimits& limits, int64_t buckets,
                                         const BucketBounds& given, uint64_t seed) {
  if (buckets < 1 || buckets > kBucketsMax)
    return invalid_argument(std::to_string(buckets) + " buckets were asked for, expected 1 to " +
                            std::to_string(kBucketsMax));
  BucketComparison comparison;
  PERCHERON_ASSIGN_OR_RETURN(comparison.lengths, LengthHistogram::make(lengths));
  comparison.limits = limits;
  const LengthHistogram& histogram = comparison.lengths;
  PERCHERON_RETURN_IF_ERROR(check_limits(histogram, limits));
  PERCHERON_RETURN_IF_ERROR(check_distinct(histogram));
  const auto add = [&](std::string name, BucketBounds bounds) -> ScoredBounds& {
    ScoredBounds scored;
    scored.name = std::move(name);
    scored.bounds = std::move(bounds);
    return comparison.scored.emplace_back(std::move(scored));
  };
  add("expected maximum",
      optimal_bounds(histogram, PaddingModel::kExpectedMaximum, limits, buckets));
  add("upper bound", optimal_bounds(histogram, PaddingModel::kUpperBound, limits, buckets));
  const bool known = is_published_set(histogram);
  ScoredBounds& geometric = add("geometric", geometric_bounds(histogram, buckets));
  if (known && buckets == std::ssize(published::kBounds))
    geometric.published_efficiency = published::kGeometricEfficiency;
  add("quantile", quantile_bounds(histogram, buckets));
  if (known) {
    add("published", BucketBounds(std::begin(published::kBounds), std::end(published::kBounds)))
        .published_efficiency = published::kEfficiency;
  }
  if (!given.empty()) {
    PERCHERON_RETURN_IF_ERROR(check_bounds(histogram, given));
    add("given", given);
  }

  PlanOptions options;
  options.order = EpochOrder::kBucketed;
  options.seed = seed;
  options.token_budget = limits.token_budget;
  options.batch_samples_max = limits.samples_max;
  PERCHERON_ASSIGN_OR_RETURN(const SampleSelection selection, select_samples(lengths, options));
  for (ScoredBounds& scored : comparison.scored) {
    scored.upper_bound =
        estimate_buckets(histogram, PaddingModel::kUpperBound, limits, scored.bounds);
    scored.expected_maximum =
        estimate_buckets(histogram, PaddingModel::kExpectedMaximum, limits, scored.bounds);
    plan_with(selection, options, scored);
  }
  return comparison;
}

}  // namespace percheron
