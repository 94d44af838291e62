#include "data/plan_simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/data/stand_in.h"

namespace percheron {
namespace {

using testing::HasSubstr;

BatchOrderSimulation simulate(BatchOrder order) {
  auto simulation = simulate_batch_order(kPublishedCounts, order, {42, 100});
  EXPECT_TRUE(simulation.ok()) << simulation.status().message();
  return *std::move(simulation);
}

TEST(PlanSimulation, ReproducesThePublishedInterleaving) {
  const BatchOrderSimulation seen = simulate(BatchOrder::kInterleaved);
  EXPECT_EQ(seen.batches, 46691);
  const double published[] = {0.045, 0.086, 0.117, 0.160, 0.172, 0.419};
  for (size_t bucket = 0; bucket < 6; ++bucket) {
    EXPECT_NEAR(seen.shares[bucket], published[bucket], 0.0006);
    for (const Spread& quarter : seen.quartile_shares[bucket]) {
      EXPECT_NEAR(quarter.least(), seen.shares[bucket], 0.001);
      EXPECT_NEAR(quarter.most(), seen.shares[bucket], 0.001);
    }
  }
  EXPECT_LE(seen.quartile_deviation_max.most(), 0.001);
  EXPECT_NEAR(seen.runs[1].mean() / 39126, 1, 0.01);
  EXPECT_NEAR(seen.runs[2].mean() / 3391, 1, 0.03);
  EXPECT_NEAR(seen.runs[3].mean() / 261, 1, 0.15);
  EXPECT_EQ(seen.longest_runs.begin()->first, 3);
  EXPECT_LE(seen.longest_runs.rbegin()->first, 4);
  EXPECT_GT(seen.all_present_until.least(), 0.999);
}

TEST(PlanSimulation, TheOtherOrdersStarveTheirTails) {
  const BatchOrderSimulation interleaved = simulate(BatchOrder::kInterleaved);
  const BatchOrderSimulation weighted = simulate(BatchOrder::kWeightedRandom);
  const BatchOrderSimulation never_twice = simulate(BatchOrder::kNeverTwice);
  EXPECT_LT(weighted.all_present_until.mean(), 0.99);
  EXPECT_GT(weighted.longest_runs.begin()->first, 6);
  EXPECT_LT(never_twice.all_present_until.mean(), 0.95);
  EXPECT_GT(never_twice.longest_runs.begin()->first, 1000);
  EXPECT_GT(never_twice.quartile_deviation_max.mean(), 0.05);
  EXPECT_GT(weighted.quartile_deviation_max.mean(), 5 * interleaved.quartile_deviation_max.mean());
}

// The end of "never twice" is one bucket alone: exactly all of a part, not a rounding more.
TEST(PlanSimulation, SharesOfAPartAreExact) {
  const auto shares = bucket_shares(kPublishedCounts, BatchOrder::kNeverTwice, 42, 50);
  EXPECT_EQ(shares[5][49], 1);
  EXPECT_EQ(shares[0][49], 0);
}

TEST(PlanSimulation, RefusesCountsThatAreNone) {
  const auto error = [](const std::vector<int64_t>& counts) {
    return simulate_batch_order(counts, BatchOrder::kInterleaved, {}).status().message();
  };
  EXPECT_THAT(error({}), HasSubstr("0 counts"));
  EXPECT_THAT(error({0, 0}), HasSubstr("0 batches in all"));
  EXPECT_THAT(error({5, -1}), HasSubstr("bucket 1 has -1"));
  EXPECT_THAT(error({5, 1000000000}), HasSubstr("expected 0 to 100,000,000"));
  EXPECT_THAT(error(std::vector<int64_t>(65, 1)), HasSubstr("65 counts"));
}

SampleSelection select_all(std::span<const int32_t> lengths, const PlanOptions& options) {
  auto selection = select_samples(lengths, options);
  EXPECT_TRUE(selection.ok()) << selection.status().message();
  return *std::move(selection);
}

TEST(PlanSimulation, TellsTheOrdersApart) {
  PlanOptions options;
  options.token_budget = 49152;
  const SampleSelection selection = select_all(stand_in_lengths(50000), options);
  const auto simulated = [&](EpochOrder order) {
    options.order = order;
    EXPECT_TRUE(resolve_buckets(selection, options).ok());
    return simulate_epoch_order(selection, options, 1, {1, 3});
  };
  const auto sorted = simulated(EpochOrder::kSorted), shuffled = simulated(EpochOrder::kShuffled);
  const auto bucketed = simulated(EpochOrder::kBucketed), packed = simulated(EpochOrder::kPacked);
  EXPECT_EQ(sorted.met_again.mean(), 1);
  EXPECT_LT(sorted.length_mix.mean(), 0.001);
  EXPECT_LT(shuffled.met_again.mean(), 0.001);
  EXPECT_LT(bucketed.met_again.mean(), 0.02);
  EXPECT_LT(packed.met_again.mean(), 0.001);
  EXPECT_GT(packed.length_mix.mean(), 0.9);
  EXPECT_LT(bucketed.length_mix.mean(), 0.2);
  EXPECT_EQ(packed.efficiency.least(), 1);
  EXPECT_GT(bucketed.efficiency.mean(), 0.8);
  EXPECT_LT(shuffled.efficiency.mean(), 0.6);
}

TEST(PlanSimulation, LengthsOfAStepAreItsMicroBatchesTogether) {
  PlanOptions options;
  options.order = EpochOrder::kSorted;
  options.token_budget = 20;
  const SampleSelection selection = select_all(std::vector<int32_t>{10, 10, 20, 20}, options);
  const EpochPlan plan = EpochPlan::make(selection, options, 0);
  ASSERT_EQ(plan.micro_batches(), 3);  // {10, 10} {20} {20}
  const std::vector<int32_t> lengths = lengths_by_position(selection);
  EXPECT_EQ(length_mix(plan, lengths, 1), 0);
  EXPECT_EQ(length_mix(plan, lengths, 3), 1);
  // Steps {10, 10, 20} and {20}: 2/3 of 100 lies within the first.
  EXPECT_NEAR(length_mix(plan, lengths, 2), 2.0 / 3, 1e-12);
}

TEST(PlanSimulation, CountsPairsThatMeetAgain) {
  PlanOptions options;
  options.order = EpochOrder::kSorted;
  options.token_budget = 4;
  const SampleSelection four = select_all(std::vector<int32_t>{2, 2, 2, 2}, options);
  const EpochPlan plan = EpochPlan::make(four, options, 0);
  EXPECT_EQ(met_again(plan, EpochPlan::make(four, options, 1)), 1);
  options.token_budget = 8;  // All four together: every pair meets again.
  const EpochPlan whole = EpochPlan::make(four, options, 0);
  EXPECT_EQ(met_again(plan, whole), 1);
  EXPECT_DOUBLE_EQ(met_again(whole, plan), 2.0 / 6);
}

// The published arithmetic of packed training: 35,446 samples of 2,353 tokens on average.
TEST(PackingArithmetic, ReproducesThePublishedBatches) {
  std::vector<int32_t> lengths = stand_in_lengths(35446);
  const int64_t wanted = int64_t{35446} * 2353;
  const double scale =
      static_cast<double>(wanted) / std::accumulate(lengths.begin(), lengths.end(), 0.0);
  int64_t tokens = 0;
  for (int32_t& length : lengths) {
    length = std::min(8192, static_cast<int32_t>(scale * length));
    tokens += length;
  }
  for (size_t i = 0; tokens < wanted; ++i, ++tokens) ++lengths[i % 30000];
  PlanOptions options;
  options.token_budget = 8192;
  const PackingArithmetic result = packing_arithmetic(select_all(lengths, options), options, 8);
  EXPECT_EQ(result.batches_unpacked, 35446);
  EXPECT_EQ(result.batches_of_samples, 4431);
  EXPECT_EQ(result.tokens_of_samples, 18824);
  EXPECT_EQ(result.batches_packed_least, 10182);
  EXPECT_GE(result.batches_packed, 10182);
  EXPECT_LE(result.batches_packed, 10400);
  EXPECT_GE(result.fill, 0.98);
}

}  // namespace
}  // namespace percheron
