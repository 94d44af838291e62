#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace percheron {

/// A sample's tokens, at most: histograms have a counter for each length.
inline constexpr int64_t kLengthMax = int64_t{1} << 24;
/// Buckets of one data set, at most.
inline constexpr int64_t kBucketsMax = 64;
/// Samples of one padded batch, at most.
inline constexpr int64_t kBatchSamplesMax = 65536;

/// A padded batch takes samples while samples x longest <= token_budget and samples <= samples_max.
struct BatchLimits {
  int64_t token_budget = 49152;
  int64_t samples_max = 64;
};

/// How many samples have each length.
class LengthHistogram {
 public:
  /// kInvalidArgument for no lengths, and for one outside 1 .. kLengthMax, which is named
  /// with its position.
  static Result<LengthHistogram> make(std::span<const int32_t> lengths);

  int64_t samples() const { return up_to_.back(); }
  int64_t tokens() const { return tokens_; }
  int64_t shortest() const { return distinct_.front(); }
  int64_t longest() const { return distinct_.back(); }
  double mean() const { return static_cast<double>(tokens_) / static_cast<double>(samples()); }
  /// Samples of at most `length` tokens; any length.
  int64_t up_to(int64_t length) const;
  /// Tokens of the samples in (low, high].
  int64_t tokens_in(int64_t low, int64_t high) const;
  /// The least length that share `numerator / denominator` of the samples do not exceed.
  int64_t quantile(int64_t numerator, int64_t denominator) const;
  /// The lengths that occur, ascending.
  std::span<const int32_t> distinct() const { return distinct_; }

 private:
  std::vector<int64_t> up_to_;  // [longest + 1]
  std::vector<int32_t> distinct_;
  int64_t tokens_ = 0;
};

/// How a bucket's padded tokens are estimated. All costs are integers, the same on every machine.
enum class PaddingModel {
  /// Every sample is padded to its bucket's upper bound, as where shapes are compiled.
  kUpperBound,
  /// Every sample is padded to the expected longest of its batch: B samples drawn from the bucket,
  /// where B is the largest number that the batch limits allow at the bucket's upper bound. Lengths
  /// are taken as evenly spread inside each class of 32.
  kExpectedMaximum,
};

/// Upper bounds of buckets, ascending; bucket i holds the lengths in (bounds[i - 1], bounds[i]].
using BucketBounds = std::vector<int64_t>;

/// Different lengths that kUpperBound can search, at most: memory is 4 bytes of each a bucket.
inline constexpr int64_t kDistinctLengthsMax = int64_t{1} << 20;

/// The bounds of at most `buckets` buckets with the least padded tokens under `model`, found by
/// dynamic programming over all partitions. kUpperBound considers every length that occurs, in
/// O(buckets D log D) for D of them: its cost obeys the quadrangle inequality, so that the best
/// split moves one way. kExpectedMaximum considers the multiples of bound_step(), in
/// O(buckets C^2 + C^3 / 6) for C classes; the last bound is one too. 1 <= buckets <= kBucketsMax;
/// check_distinct() comes before kUpperBound.
BucketBounds optimal_bounds(const LengthHistogram& lengths, PaddingModel model,
                            const BatchLimits& limits, int64_t buckets);

/// The step between bounds under kExpectedMaximum: 32, doubled until there are at most 512 classes.
int64_t bound_step(const LengthHistogram& lengths);

/// Bounds at equal ratios between the shortest and the longest length, for comparison.
BucketBounds geometric_bounds(const LengthHistogram& lengths, int64_t buckets);
/// Bounds that hold equally many samples each, for comparison.
BucketBounds quantile_bounds(const LengthHistogram& lengths, int64_t buckets);

/// One bucket under a model.
struct BucketEstimate {
  int64_t low = 0, high = 0;  // lengths in (low, high]
  int64_t samples = 0;
  int64_t tokens = 0;         // of the samples
  int64_t batch_samples = 0;  // that the limits allow at the upper bound
  double padded_tokens = 0;   // the samples' tokens with their padding

  double efficiency() const;  // tokens over padded tokens; 1 when empty
};

/// What `bounds` cost under `model`. `bounds` must ascend and end at the longest length or above.
std::vector<BucketEstimate> estimate_buckets(const LengthHistogram& lengths, PaddingModel model,
                                             const BatchLimits& limits,
                                             std::span<const int64_t> bounds);

/// Tokens of all samples over their padded tokens.
double efficiency(std::span<const BucketEstimate> buckets);

/// Checks bounds from outside: kInvalidArgument unless they ascend from above 0 and reach the
/// longest length.
Status check_bounds(const LengthHistogram& lengths, std::span<const int64_t> bounds);
/// kInvalidArgument for more than kDistinctLengthsMax different lengths.
Status check_distinct(const LengthHistogram& lengths);
/// Checks limits from outside: a budget that holds the longest sample, 1 .. kBatchSamplesMax
/// samples.
Status check_limits(const LengthHistogram& lengths, const BatchLimits& limits);

}  // namespace percheron
