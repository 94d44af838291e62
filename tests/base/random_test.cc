#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace percheron {
namespace {

TEST(Random, GivesThePublishedSplitMix64Sequence) {
  Random random(1234567);
  const std::vector<uint64_t> expected = {6457827717110365317u, 3203168211198807973u,
                                          9817491932198370423u, 4593380528125082431u,
                                          16408922859458223821u};
  for (const uint64_t value : expected) EXPECT_EQ(random.next(), value);
}

TEST(Random, KeyedDrawsDependOnEveryPartOfTheKey) {
  const uint64_t first = Random::keyed(1, "anchors", 2, 3).next();
  EXPECT_EQ(Random::keyed(1, "anchors", 2, 3).next(), first);
  EXPECT_NE(Random::keyed(2, "anchors", 2, 3).next(), first);
  EXPECT_NE(Random::keyed(1, "noise", 2, 3).next(), first);
  EXPECT_NE(Random::keyed(1, "anchors", 3, 2).next(), first);
  EXPECT_NE(Random::keyed(1, "anchors", 2, 4).next(), first);
}

TEST(Random, BelowIsUniformAndInRange) {
  Random random(7);
  std::vector<int> counts(10);
  for (int i = 0; i < 100000; ++i) ++counts.at(random.below(counts.size()));
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
  EXPECT_EQ(random.below(1), 0u);
  for (int i = 0; i < 100; ++i)
    EXPECT_LT(random.below((uint64_t{1} << 63) + 1), (uint64_t{1} << 63) + 1);
}

TEST(Random, UniformAndNormalHaveTheirMoments) {
  Random random(11);
  constexpr int kCount = 100000;
  double uniform_sum = 0, normal_sum = 0, square_sum = 0;
  for (int i = 0; i < kCount; ++i) {
    const double u = random.uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    uniform_sum += u;
    const double n = random.normal();
    ASSERT_TRUE(std::isfinite(n));
    normal_sum += n;
    square_sum += n * n;
  }
  EXPECT_NEAR(uniform_sum / kCount, 0.5, 0.01);
  EXPECT_NEAR(normal_sum / kCount, 0.0, 0.02);
  EXPECT_NEAR(square_sum / kCount, 1.0, 0.03);
}

TEST(Random, ShuffleKeepsTheElementsAndItsOrderIsFixed) {
  std::vector<int> values(8);
  std::iota(values.begin(), values.end(), 0);
  Random random(42);
  shuffle(std::span(values), random);
  // Persisted plans depend on this order: it may never change.
  EXPECT_EQ(values, (std::vector<int>{4, 3, 2, 0, 7, 6, 1, 5}));
  std::sort(values.begin(), values.end());
  for (int i = 0; i < 8; ++i) EXPECT_EQ(values[i], i);
}

}  // namespace
}  // namespace percheron
