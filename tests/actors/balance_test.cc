#include "actors/policy/balance.h"

#include <gtest/gtest.h>

namespace percheron {
namespace {

// `targets` of 10 samples/s each, `trainers` of `train` each.
BalanceMeasure measure_of(int targets, int trainers, double train, double captured_share = 1) {
  return {targets, trainers, targets * 10.0, trainers * train, captured_share};
}

TEST(Balance, TheBestSplitFeedsTrainersThatAreThreeTimesSlower) {
  // 8 devices: 2 targets make 20 samples/s, and 6 trainers take 20.
  EXPECT_EQ(best_split(measure_of(4, 4, 10.0 / 3)), (RoleSplit{2, 6, 20}));
  EXPECT_EQ(split_now(measure_of(4, 4, 10.0 / 3)).samples_per_second, 4 * 10.0 / 3);
  EXPECT_EQ(best_split(measure_of(2, 6, 10.0 / 3)), (RoleSplit{2, 6, 20}));
}

TEST(Balance, ATargetOnSeveralDevicesMovesWithAllOfThem) {
  BalanceMeasure measure = measure_of(3, 2, 1);  // 30 samples/s are made, and 2 taken
  measure.devices_per_target = 2;
  EXPECT_EQ(best_split(measure), (RoleSplit{1, 6, 6}));
  BalancePolicy policy(0);
  for (int i = 1; i < BalancePolicy::kTimes; ++i) EXPECT_FALSE(policy.consider(measure, i));
  EXPECT_EQ(policy.consider(measure, 10), (RoleSplit{2, 4, 4}));
  measure = measure_of(1, 3, 1000);
  measure.devices_per_target = 2;
  EXPECT_EQ(best_split(measure)->trainers, 1) << "two of three make a target";
  measure = measure_of(1, 2, 1000);
  measure.devices_per_target = 2;
  EXPECT_EQ(best_split(measure)->trainers, 2) << "none would be left";
}

TEST(Balance, ASideKeepsOneDevice) {
  EXPECT_EQ(best_split(measure_of(2, 2, 0.01))->targets, 1);
  EXPECT_EQ(best_split(measure_of(2, 2, 10000))->trainers, 1);
  EXPECT_EQ(best_split(measure_of(1, 1, 0.01)), (RoleSplit{1, 1, 0.01}));
}

TEST(Balance, WhatTheCacheHoldsNeedsNoTarget) {
  EXPECT_EQ(best_split(measure_of(3, 1, 10, 1))->targets, 2);
  EXPECT_EQ(best_split(measure_of(3, 1, 10, 0.1))->targets, 1);
  EXPECT_EQ(best_split({3, 1, 0, 10, 0}), (RoleSplit{1, 3, 30}));
}

TEST(Balance, NothingIsSaidOfASideThatWasNotSeen) {
  EXPECT_FALSE(best_split({2, 2, 0, 10, 1}));
  EXPECT_FALSE(best_split({2, 2, 10, 0, 1}));
  EXPECT_FALSE(best_split({0, 2, 10, 10, 1}));
}

TEST(BalancePolicyTest, ADeviceMovesAfterMeasuresThatAgreeAndOneAtATime) {
  BalancePolicy policy(60);
  const BalanceMeasure measure = measure_of(4, 4, 10.0 / 3);
  EXPECT_FALSE(policy.consider(measure, 100));  // The run has just begun.
  EXPECT_FALSE(policy.consider(measure, 159));
  EXPECT_FALSE(policy.consider(measure, 160));
  EXPECT_FALSE(policy.consider(measure, 161));
  const auto moved = policy.consider(measure, 162);
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->targets, 3);
  EXPECT_EQ(moved->trainers, 5);
  // The next one only when that has settled.
  const BalanceMeasure after = measure_of(3, 5, 10.0 / 3);
  EXPECT_FALSE(policy.consider(after, 170));
  for (double now = 230; now < 232; ++now) EXPECT_FALSE(policy.consider(after, now));
  EXPECT_TRUE(policy.consider(after, 232));
}

TEST(BalancePolicyTest, RatesThatWaverMoveNothing) {
  BalancePolicy policy(0);
  for (int i = 0; i < 50; ++i) {
    // Now this side seems faster, now that.
    EXPECT_FALSE(policy.consider(measure_of(4, 4, i % 2 == 0 ? 5 : 20), i)) << i;
  }
  for (int i = 50; i < 100; ++i) {
    EXPECT_FALSE(policy.consider(measure_of(4, 4, 9.5), i)) << "the gain is too small";
  }
}

}  // namespace
}  // namespace percheron
