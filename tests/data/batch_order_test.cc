#include "data/batch_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/data/stand_in.h"
#include "tests/test_seed.h"

namespace percheron {
namespace {

using testing::ElementsAre;

std::vector<uint32_t> order_of(const std::vector<int64_t>& counts, BatchOrder order,
                               uint64_t seed) {
  Random random(seed);
  return order_batches(counts, order, random);
}

TEST(BatchOrder, HoldsEveryBatchOnce) {
  const TestSeed seed(71);
  Random random(seed.value());
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<int64_t> counts(1 + random.below(8));
    for (int64_t& count : counts) count = static_cast<int64_t>(random.below(40));
    for (const auto order :
         {BatchOrder::kInterleaved, BatchOrder::kWeightedRandom, BatchOrder::kNeverTwice}) {
      const auto batches = order_of(counts, order, random.next());
      for (size_t bucket = 0; bucket < counts.size(); ++bucket)
        EXPECT_EQ(std::count(batches.begin(), batches.end(), bucket), counts[bucket]);
    }
  }
}

TEST(BatchOrder, IsTheSameOnEveryMachine) {
  const auto batches = order_of({1, 2, 5}, BatchOrder::kInterleaved, 7);
  const auto whole = order_of(kPublishedCounts, BatchOrder::kInterleaved, 7);
  EXPECT_EQ(batches, order_of({1, 2, 5}, BatchOrder::kInterleaved, 7));
  EXPECT_NE(batches, order_of({1, 2, 5}, BatchOrder::kInterleaved, 8));
  // Computed apart from this program.
  EXPECT_THAT(batches, ElementsAre(2, 2, 0, 2, 1, 2, 2, 1));
  const std::vector<uint32_t> first(whole.begin(), whole.begin() + 16);
  const std::vector<uint32_t> last(whole.end() - 12, whole.end());
  EXPECT_THAT(first, ElementsAre(5, 5, 4, 2, 5, 3, 4, 0, 5, 5, 3, 1, 2, 5, 4, 5));
  EXPECT_THAT(last, ElementsAre(1, 0, 4, 5, 3, 5, 5, 2, 4, 1, 3, 5));
}

// Between a bucket's neighbours lie at least half and at most one and a half of its strides.
TEST(BatchOrder, SpreadsEveryBucketOverTheWholeEpoch) {
  const auto batches = order_of(kPublishedCounts, BatchOrder::kInterleaved, 3);
  for (size_t bucket = 0; bucket < kPublishedCounts.size(); ++bucket) {
    const double stride =
        static_cast<double>(batches.size()) / static_cast<double>(kPublishedCounts[bucket]);
    double last = -1;
    for (size_t i = 0; i < batches.size(); ++i) {
      if (batches[i] != bucket) continue;
      const auto at = static_cast<double>(i);
      if (last >= 0) {
        EXPECT_LT(at - last, 1.5 * stride + 8) << bucket;
        EXPECT_GT(at - last, 0.5 * stride - 8) << bucket;
      } else {
        EXPECT_LT(at, 1.5 * stride + 8) << bucket;
      }
      last = at;
    }
    EXPECT_GT(last, static_cast<double>(batches.size()) - 1.5 * stride - 8) << bucket;
  }
}

TEST(BatchOrder, NeverTwiceRepeatsOnlyWhenNothingElseIsLeft) {
  const std::vector<int64_t> counts = {10, 5, 30};
  const auto batches = order_of(counts, BatchOrder::kNeverTwice, 5);
  std::vector<int64_t> left = counts;
  for (size_t i = 0; i < batches.size(); ++i) {
    if (i > 0 && batches[i] == batches[i - 1]) {
      for (size_t other = 0; other < left.size(); ++other) {
        if (other != batches[i]) {
          EXPECT_EQ(left[other], 0);
        }
      }
    }
    --left[batches[i]];
  }
}

TEST(OrderStatistics, CountSharesQuartersAndRuns) {
  const std::vector<uint32_t> order = {0, 1, 1, 1, 0, 2, 2, 1, 0, 0};
  const OrderStatistics seen = order_statistics(order, 4);
  EXPECT_THAT(seen.shares, ElementsAre(0.4, 0.4, 0.2, 0));
  EXPECT_THAT(seen.runs, ElementsAre(0, 3, 2, 1));  // 0 | 111 | 0 | 22 | 1 | 00
  EXPECT_EQ(seen.longest_run, 3);
  // Quarters begin at batches 0, 3, 5 and 8.
  EXPECT_THAT(seen.quartile_shares[0], ElementsAre(1.0 / 3, 0.5, 0, 1));
  EXPECT_THAT(seen.quartile_shares[1], ElementsAre(2.0 / 3, 0.5, 1.0 / 3, 0));
  EXPECT_THAT(seen.quartile_shares[3], ElementsAre(0, 0, 0, 0));
  EXPECT_DOUBLE_EQ(seen.quartile_deviation_max, 0.6);  // bucket 0 in the last
  EXPECT_DOUBLE_EQ(seen.all_present_until, 0.7);
}

TEST(OrderStatistics, CountLongRunsTogether) {
  std::vector<uint32_t> order(kRunCountedMax - 1, 0);
  order.insert(order.end(), kRunCountedMax, 1);
  order.insert(order.end(), 1'000'000, 0);
  const OrderStatistics seen = order_statistics(order, 2);
  ASSERT_EQ(seen.runs.size(), static_cast<size_t>(kRunCountedMax) + 1);
  EXPECT_EQ(seen.runs[kRunCountedMax - 1], 1);
  EXPECT_EQ(seen.runs[kRunCountedMax], 2);
  EXPECT_EQ(seen.longest_run, 1'000'000);
}

TEST(OrderStatistics, OfNothingAreEmpty) { EXPECT_EQ(order_statistics({}, 2).longest_run, 0); }

}  // namespace
}  // namespace percheron
