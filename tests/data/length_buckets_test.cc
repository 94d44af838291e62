#include "data/length_buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "base/random.h"
#include "tests/data/stand_in.h"
#include "tests/test_seed.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

LengthHistogram histogram(const std::vector<int32_t>& lengths) {
  auto made = LengthHistogram::make(lengths);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *std::move(made);
}

double padded(const LengthHistogram& lengths, PaddingModel model, const BatchLimits& limits,
              std::span<const int64_t> bounds) {
  double tokens = 0;
  for (const BucketEstimate& bucket : estimate_buckets(lengths, model, limits, bounds))
    tokens += bucket.padded_tokens;
  return tokens;
}

// The least padded tokens over all ways to take at most `buckets` bounds from `candidates`, the
// last of which is always taken.
double least_padded(const LengthHistogram& lengths, PaddingModel model, const BatchLimits& limits,
                    const std::vector<int64_t>& candidates, int64_t buckets) {
  double least = std::numeric_limits<double>::infinity();
  std::vector<int64_t> chosen;
  const std::function<void(size_t)> choose = [&](size_t next) {
    if (static_cast<int64_t>(chosen.size()) + 1 <= buckets) {
      std::vector<int64_t> bounds = chosen;
      bounds.push_back(candidates.back());
      least = std::min(least, padded(lengths, model, limits, bounds));
    }
    if (static_cast<int64_t>(chosen.size()) + 1 >= buckets) return;
    for (size_t i = next; i + 1 < candidates.size(); ++i) {
      chosen.push_back(candidates[i]);
      choose(i + 1);
      chosen.pop_back();
    }
  };
  choose(0);
  return least;
}

std::vector<int32_t> random_lengths(Random& random, size_t samples, int32_t longest) {
  std::vector<int32_t> lengths(samples);
  for (int32_t& length : lengths)
    length = 1 + static_cast<int32_t>(random.uniform() * random.uniform() * longest);
  return lengths;
}

TEST(LengthHistogram, CountsSamplesAndTokens) {
  const LengthHistogram lengths = histogram({5, 2, 5, 9});
  EXPECT_EQ(lengths.samples(), 4);
  EXPECT_EQ(lengths.tokens(), 21);
  EXPECT_THAT(lengths.distinct(), ElementsAre(2, 5, 9));
  EXPECT_EQ(lengths.up_to(-1), 0);
  EXPECT_EQ(lengths.up_to(4), 1);
  EXPECT_EQ(lengths.up_to(5), 3);
  EXPECT_EQ(lengths.up_to(1000), 4);
  EXPECT_EQ(lengths.tokens_in(2, 9), 19);
  EXPECT_EQ(lengths.tokens_in(0, 8), 12);
  EXPECT_EQ(lengths.quantile(1, 2), 5);
  EXPECT_EQ(lengths.quantile(1, 4), 2);
  EXPECT_EQ(lengths.quantile(1, 1), 9);
}

TEST(LengthHistogram, RefusesWhatIsNoLength) {
  EXPECT_THAT(LengthHistogram::make({}).status().message(), HasSubstr("no lengths"));
  EXPECT_THAT(LengthHistogram::make(std::vector<int32_t>{3, 0}).status().message(),
              AllOf(HasSubstr("sample 1"), HasSubstr("length 0")));
  EXPECT_THAT(LengthHistogram::make(std::vector<int32_t>{16777217}).status().message(),
              HasSubstr("16777217"));
}

TEST(LengthBuckets, AreOptimalByTheUpperBound) {
  const TestSeed seed(31);
  Random random(seed.value());
  for (int trial = 0; trial < 30; ++trial) {
    const auto values = random_lengths(random, 1 + random.below(60), 18);
    const LengthHistogram lengths = histogram(values);
    const std::vector<int64_t> candidates(lengths.distinct().begin(), lengths.distinct().end());
    const BatchLimits limits;
    for (int64_t buckets = 1; buckets <= 5; ++buckets) {
      const auto bounds = optimal_bounds(lengths, PaddingModel::kUpperBound, limits, buckets);
      EXPECT_LE(static_cast<int64_t>(bounds.size()), buckets);
      EXPECT_TRUE(check_bounds(lengths, bounds).ok());
      EXPECT_EQ(padded(lengths, PaddingModel::kUpperBound, limits, bounds),
                least_padded(lengths, PaddingModel::kUpperBound, limits, candidates, buckets));
    }
  }
}

TEST(LengthBuckets, AreOptimalByTheExpectedMaximum) {
  const TestSeed seed(32);
  Random random(seed.value());
  for (int trial = 0; trial < 10; ++trial) {
    const LengthHistogram lengths = histogram(random_lengths(random, 1 + random.below(500), 380));
    const BatchLimits limits{400 + static_cast<int64_t>(random.below(2000)),
                             1 + static_cast<int64_t>(random.below(20))};
    std::vector<int64_t> candidates;
    for (int64_t bound = 32; candidates.empty() || candidates.back() < lengths.longest();
         bound += 32)
      candidates.push_back(bound);
    for (int64_t buckets = 1; buckets <= 4; ++buckets) {
      const auto bounds = optimal_bounds(lengths, PaddingModel::kExpectedMaximum, limits, buckets);
      EXPECT_TRUE(check_bounds(lengths, bounds).ok());
      // The search counts in parts of a token, the estimate in floating point.
      EXPECT_NEAR(
          padded(lengths, PaddingModel::kExpectedMaximum, limits, bounds),
          least_padded(lengths, PaddingModel::kExpectedMaximum, limits, candidates, buckets), 1e-6);
    }
  }
}

TEST(LengthBuckets, ExpectTheLongestOfABatchAsDrawingFindsIt) {
  const TestSeed seed(33);
  Random random(seed.value());
  const std::vector<int32_t> values = random_lengths(random, 20000, 4000);
  const LengthHistogram lengths = histogram(values);
  const BatchLimits limits{16384, 64};
  const std::vector<int64_t> bounds = {500, 1300, 4000};
  for (const BucketEstimate& bucket :
       estimate_buckets(lengths, PaddingModel::kExpectedMaximum, limits, bounds)) {
    std::vector<int32_t> own;
    for (const int32_t length : values) {
      if (bucket.low < length && length <= bucket.high) own.push_back(length);
    }
    ASSERT_EQ(static_cast<int64_t>(own.size()), bucket.samples);
    double sum = 0;
    constexpr int kBatches = 20000;
    for (int batch = 0; batch < kBatches; ++batch) {
      int32_t longest = 0;
      for (int64_t i = 0; i < bucket.batch_samples; ++i)
        longest = std::max(longest, own[random.below(own.size())]);
      sum += longest;
    }
    EXPECT_NEAR(bucket.padded_tokens / static_cast<double>(bucket.samples) / (sum / kBatches), 1,
                0.01);
    EXPECT_LE(static_cast<double>(bucket.batch_samples) * bucket.padded_tokens,
              static_cast<double>(limits.token_budget * bucket.samples));
  }
}

TEST(LengthBuckets, OneLengthNeedsOneBucketAndNoPadding) {
  const LengthHistogram lengths = histogram(std::vector<int32_t>(100, 64));
  const BatchLimits limits;
  EXPECT_THAT(optimal_bounds(lengths, PaddingModel::kUpperBound, limits, 6), ElementsAre(64));
  EXPECT_THAT(quantile_bounds(lengths, 6), ElementsAre(64));
  EXPECT_THAT(geometric_bounds(lengths, 6), ElementsAre(64));
  EXPECT_EQ(efficiency(estimate_buckets(lengths, PaddingModel::kUpperBound, limits,
                                        std::vector<int64_t>{64})),
            1);
}

TEST(LengthBuckets, ScoreAtLeastThePublishedOnes) {
  const LengthHistogram lengths = histogram(stand_in_lengths());
  const BatchLimits limits{49152, 64};
  for (const auto model : {PaddingModel::kUpperBound, PaddingModel::kExpectedMaximum}) {
    const auto bounds = optimal_bounds(lengths, model, limits, 6);
    EXPECT_EQ(bounds.size(), 6u);
    const double ours = efficiency(estimate_buckets(lengths, model, limits, bounds));
    const double published = efficiency(estimate_buckets(lengths, model, limits, kPublishedBounds));
    const double geometric =
        efficiency(estimate_buckets(lengths, model, limits, geometric_bounds(lengths, 6)));
    EXPECT_GE(ours, published);
    EXPECT_GT(ours, geometric);
    EXPECT_NEAR(published, model == PaddingModel::kUpperBound ? 0.67 : 0.83, 0.01);
  }
}

TEST(LengthBuckets, RefuseMoreLengthsThanTheirSearchHasMemoryFor) {
  std::vector<int32_t> lengths(static_cast<size_t>(kDistinctLengthsMax) + 1);
  std::iota(lengths.begin(), lengths.end(), 1);
  EXPECT_THAT(check_distinct(histogram(lengths)).message(),
              AllOf(HasSubstr("1,048,577 different lengths"), HasSubstr("multiples of 2")));
  lengths.pop_back();
  EXPECT_TRUE(check_distinct(histogram(lengths)).ok());
  // The classes of the other model are few, whatever the lengths.
  lengths.push_back(kLengthMax);
  EXPECT_EQ(
      optimal_bounds(histogram(lengths), PaddingModel::kExpectedMaximum, {int64_t{1} << 30, 64}, 1)
          .size(),
      1u);
}

TEST(LengthBuckets, RefuseBoundsAndLimitsThatDoNotHoldTheSamples) {
  const LengthHistogram lengths = histogram({10, 90});
  EXPECT_THAT(check_bounds(lengths, std::vector<int64_t>{40, 80}).message(),
              AllOf(HasSubstr("last bound is 80"), HasSubstr("90")));
  EXPECT_THAT(check_bounds(lengths, std::vector<int64_t>{40, 40, 90}).message(),
              HasSubstr("must ascend"));
  EXPECT_THAT(check_bounds(lengths, std::vector<int64_t>{0, 90}).message(),
              HasSubstr("must ascend"));
  EXPECT_FALSE(check_bounds(lengths, {}).ok());
  EXPECT_THAT(check_limits(lengths, {89, 4}).message(), HasSubstr("token budget is 89"));
  EXPECT_THAT(check_limits(lengths, {90, 0}).message(), HasSubstr("at most 0 samples"));
  EXPECT_TRUE(check_limits(lengths, {90, 1}).ok());
}

}  // namespace
}  // namespace percheron
