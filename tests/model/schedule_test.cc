#include "model/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace percheron {
namespace {

TEST(Schedule, OfTheDemoWarmsUpFromOneStepAndFallsToItsFloor) {
  Schedule schedule;
  schedule.total_steps = 1600;
  schedule.warmup_steps = warmup_steps_from_ratio(0.04, 1600);
  schedule.floor = 0.05;
  EXPECT_EQ(schedule.warmup_steps, 64);
  for (const int64_t s : {0, 1, 62, 63, 64, 65, 800, 1599}) {
    const double rise = std::min(1.0, (s + 1) / 64.0);
    const double fall = 0.5 * (1 + std::cos(std::numbers::pi * std::max<double>(0, s - 64) / 1536));
    EXPECT_NEAR(schedule_factor(schedule, s), rise * (0.05 + 0.95 * fall), 1e-15) << s;
  }
}

TEST(Schedule, OfTrainingHoldsItsLastRatePastTheEnd) {
  for (const ScheduleShape shape : {ScheduleShape::kCosine, ScheduleShape::kLinear,
                                    ScheduleShape::kConstant, ScheduleShape::kWsd}) {
    Schedule schedule;
    schedule.shape = shape;
    schedule.total_steps = 100;
    schedule.decay_steps = 20;
    schedule.floor = 0.1;
    const double end = schedule_factor(schedule, 100);
    EXPECT_DOUBLE_EQ(end, shape == ScheduleShape::kConstant ? 1.0 : 0.1);
    for (const int64_t s : {101, 150, 100000}) EXPECT_EQ(schedule_factor(schedule, s), end) << s;
  }
}

TEST(Schedule, AsTransformersRisesAgainPastTheEndOnlyWhenAsked) {
  Schedule schedule;
  schedule.total_steps = 100;
  schedule.past_end = PastEnd::kFormula;
  EXPECT_GT(schedule_factor(schedule, 150), 0.4);
}

TEST(Schedule, WarmupsNeverOvershootTheirPeak) {
  for (const Warmup warmup : {Warmup::kFromZero, Warmup::kFromOne}) {
    Schedule schedule;
    schedule.warmup = warmup;
    schedule.warmup_steps = 1;
    schedule.total_steps = 3;
    for (int64_t s = 0; s <= 3; ++s) EXPECT_LE(schedule_factor(schedule, s), 1.0);
    EXPECT_EQ(schedule_factor(schedule, 0), warmup == Warmup::kFromZero ? 0.0 : 1.0);
    EXPECT_EQ(schedule_factor(schedule, 1), 1.0);
  }
}

TEST(Schedule, IsRefusedWhenItsNumbersDoNotFit) {
  Schedule schedule;
  EXPECT_EQ(check_schedule(schedule).code(), StatusCode::kInvalidArgument);
  schedule.total_steps = 10;
  EXPECT_TRUE(check_schedule(schedule).ok());
  schedule.warmup_steps = 11;
  EXPECT_NE(check_schedule(schedule).message().find("11 warm-up steps"), std::string::npos);
  schedule.warmup_steps = 5;
  schedule.decay_steps = 6;
  EXPECT_NE(check_schedule(schedule).message().find("6 decay steps"), std::string::npos);
  schedule.decay_steps = 0;
  schedule.floor = std::nan("");
  EXPECT_FALSE(check_schedule(schedule).ok());
}

}  // namespace
}  // namespace percheron
