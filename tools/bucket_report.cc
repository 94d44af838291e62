#include "tools/bucket_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/units.h"

namespace percheron {
namespace {

std::string count(int64_t n) { return format_count(static_cast<uint64_t>(n)); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string buckets_table(const std::string& title, const std::vector<BucketEstimate>& buckets,
                          const ScoredBounds& scored) {
  std::string out = fmt::format("\n{}\n{:>16}{:>12}{:>12}{:>12}{:>17}\n", title, "lengths",
                                "samples", "batch size", "efficiency", "batches planned");
  for (size_t i = 0; i < buckets.size(); ++i) {
    const BucketEstimate& bucket = buckets[i];
    out += fmt::format("{:>16}{:>12}{:>12}{:>12}{:>17}\n",
                       fmt::format("{} - {}", bucket.low + 1, bucket.high), count(bucket.samples),
                       count(bucket.batch_samples), percent(bucket.efficiency()),
                       count(scored.planned_batches[i]));
  }
  return out +
         fmt::format("{:>16}{:>12}{:>12}{:>12}\n", "all", "", "", percent(efficiency(buckets)));
}

std::string comparison_table(const BucketComparison& comparison) {
  std::string out =
      fmt::format("\n{:<18}{:<40}{:>13}{:>18}{:>13}{:>11}\n", "efficiency of", "bounds",
                  "upper bound", "expected maximum", "epoch plan", "published");
  for (const ScoredBounds& scored : comparison.scored) {
    out += fmt::format(
        "{:<18}{:<40}{:>13}{:>18}{:>13}{}\n", scored.name,
        fmt::format("{}", fmt::join(scored.bounds, " ")), percent(efficiency(scored.upper_bound)),
        percent(efficiency(scored.expected_maximum)), percent(scored.planned_efficiency),
        scored.published_efficiency ? fmt::format("{:>11}", percent(*scored.published_efficiency))
                                    : "");
  }
  return out;
}

nlohmann::ordered_json buckets_json(const std::vector<BucketEstimate>& buckets) {
  auto list = nlohmann::ordered_json::array();
  for (const BucketEstimate& bucket : buckets) {
    list.push_back({{"low", bucket.low},
                    {"high", bucket.high},
                    {"samples", bucket.samples},
                    {"tokens", bucket.tokens},
                    {"batch_size", bucket.batch_samples},
                    {"padded_tokens", bucket.padded_tokens},
                    {"efficiency", bucket.efficiency()}});
  }
  return list;
}

}  // namespace

std::string bucket_report(const BucketComparison& comparison) {
  const LengthHistogram& lengths = comparison.lengths;
  const ScoredBounds& expected = comparison.scored[0];
  const ScoredBounds& upper = comparison.scored[1];
  std::string out = fmt::format(
      "{} samples, {} tokens, {} to {} tokens long, {:.1f} on average; a batch has at most {} "
      "tokens and {} samples\n",
      count(lengths.samples()), count(lengths.tokens()), count(lengths.shortest()),
      count(lengths.longest()), lengths.mean(), count(comparison.limits.token_budget),
      count(comparison.limits.samples_max));
  out += buckets_table(
      fmt::format("best {} buckets, padding to the longest of a batch as it is expected (bounds at "
                  "multiples of {})",
                  expected.bounds.size(), bound_step(lengths)),
      expected.expected_maximum, expected);
  out += buckets_table(
      fmt::format("best {} buckets, padding to the bucket's upper bound", upper.bounds.size()),
      upper.upper_bound, upper);
  out += comparison_table(comparison);
  const bool has_published =
      std::any_of(comparison.scored.begin(), comparison.scored.end(),
                  [](const ScoredBounds& scored) { return scored.name == "published"; });
  if (has_published) {
    out += fmt::format(
        "published: batch sizes {}, batches {}; how its efficiency was estimated is not known\n",
        fmt::join(published::kBatchSamples, " "), fmt::join(published::kBatches, " "));
  }
  return out;
}

nlohmann::ordered_json bucket_json(const BucketComparison& comparison) {
  const LengthHistogram& lengths = comparison.lengths;
  nlohmann::ordered_json json{{"samples", lengths.samples()},
                              {"tokens", lengths.tokens()},
                              {"shortest", lengths.shortest()},
                              {"longest", lengths.longest()},
                              {"token_budget", comparison.limits.token_budget},
                              {"batch_samples_max", comparison.limits.samples_max},
                              {"bound_step", bound_step(lengths)}};
  auto& list = json["bounds"] = nlohmann::ordered_json::array();
  for (const ScoredBounds& scored : comparison.scored) {
    nlohmann::ordered_json entry{
        {"name", scored.name},
        {"bounds", scored.bounds},
        {"efficiency_upper_bound", efficiency(scored.upper_bound)},
        {"efficiency_expected_maximum", efficiency(scored.expected_maximum)},
        {"efficiency_planned", scored.planned_efficiency},
        {"batches_planned", scored.planned_batches},
        {"buckets_upper_bound", buckets_json(scored.upper_bound)},
        {"buckets_expected_maximum", buckets_json(scored.expected_maximum)}};
    if (scored.published_efficiency) entry["efficiency_published"] = *scored.published_efficiency;
    list.push_back(std::move(entry));
  }
  return json;
}

}  // namespace percheron
