// What a run would be faster without, from what its workers did.

#include "actors/policy/bottleneck.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Shares of time in percent.
struct Shares {
  double compute = 0, features = 0, step_end = 0, device = 0, reduce = 0, update = 0;
  double evaluation = 0, checkpoint = 0;
};

RunTimes times(const Shares& trainers, double target_compute, double room = 0, double work = 0) {
  RunTimes window;
  window.trainers[Occupation::kCompute] = trainers.compute;
  window.trainers[Occupation::kFeatures] = trainers.features;
  window.trainers[Occupation::kStepEnd] = trainers.step_end;
  window.trainers[Occupation::kDevice] = trainers.device;
  window.trainers[Occupation::kReduce] = trainers.reduce;
  window.trainers[Occupation::kUpdate] = trainers.update;
  window.trainers[Occupation::kEvaluation] = trainers.evaluation;
  window.trainers[Occupation::kCheckpoint] = trainers.checkpoint;
  window.targets[Occupation::kCompute] = target_compute;
  window.targets[Occupation::kRoom] = room;
  window.targets[Occupation::kWork] = work;
  return window;
}

Bottleneck judged(const RunTimes& window) {
  BottleneckJudge judge;
  for (int i = 0; i < BottleneckJudge::kTimes; ++i) judge.judge(window);
  return judge.current();
}

TEST(Bottleneck, TrainersThatWaitForBusyTargetsNameTheTargets) {
  const RunTimes window = times({.compute = 37, .features = 63}, 98, 2);
  EXPECT_EQ(judged(window), Bottleneck::kTargets);
  EXPECT_THAT(bottleneck_words(Bottleneck::kTargets, window),
              AllOf(HasSubstr("63%"), HasSubstr("98%"), HasSubstr("placement.targets")));
}

// "The GPU is idle while its queue is full": the targets' device, for the trainers are slow.
TEST(Bottleneck, TargetsThatWaitForRoomNameTheBusyTrainers) {
  const RunTimes window = times({.compute = 97, .features = 3}, 20, 80);
  EXPECT_EQ(judged(window), Bottleneck::kTrainers);
  EXPECT_THAT(bottleneck_words(Bottleneck::kTrainers, window),
              AllOf(HasSubstr("97%"), HasSubstr("80%"), HasSubstr("placement.trainers")));
}

// "The GPU is idle while its queue is full": the trainers' device, for what is queued belongs to
// steps that are not open.
TEST(Bottleneck, TrainersIdleBesideAFullQueueNameTheStepEnd) {
  RunTimes window = times({.compute = 60, .features = 4, .step_end = 36}, 50, 50);
  window.queued_later = 40;
  EXPECT_EQ(judged(window), Bottleneck::kStepEnd);
  EXPECT_THAT(
      bottleneck_words(Bottleneck::kStepEnd, window),
      AllOf(HasSubstr("36%"), HasSubstr("40 tickets"), HasSubstr("train.micro_batches_per_step")));
}

TEST(Bottleneck, BothSidesWaitingNamesTheStoreLimit) {
  EXPECT_EQ(judged(times({.compute = 50, .features = 50}, 50, 50)), Bottleneck::kStoreBytes);
}

TEST(Bottleneck, OneDeviceForBothIsNamed) {
  RunTimes window = times({.compute = 50, .features = 20, .device = 30}, 50, 2);
  window.shared_device = true;
  EXPECT_EQ(judged(window), Bottleneck::kSharedDevice);
}

TEST(Bottleneck, ReductionsEvaluationsAndCheckpointsAreNamed) {
  EXPECT_EQ(judged(times({.compute = 70, .reduce = 20, .update = 10}, 50, 50)),
            Bottleneck::kReduction);
  EXPECT_EQ(judged(times({.compute = 70, .evaluation = 30}, 50, 50)), Bottleneck::kEvaluation);
  EXPECT_EQ(judged(times({.compute = 70, .checkpoint = 30}, 50, 50)), Bottleneck::kCheckpoint);
}

TEST(Bottleneck, NothingSeenIsUnknown) {
  EXPECT_EQ(judged(RunTimes{}), Bottleneck::kUnknown);
  RunTimes loading;
  loading.trainers[Occupation::kIdle] = 100;
  EXPECT_EQ(judged(loading), Bottleneck::kUnknown);
}

TEST(Bottleneck, AnotherOneMustLeadSeveralTimesInSuccession) {
  BottleneckJudge judge;
  const RunTimes targets = times({.compute = 40, .features = 60}, 98, 2);
  const RunTimes trainers = times({.compute = 99, .features = 1}, 20, 80);
  for (int i = 0; i < BottleneckJudge::kTimes; ++i) judge.judge(targets);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i + 1 < BottleneckJudge::kTimes; ++i) judge.judge(trainers);
    EXPECT_EQ(judge.judge(targets), Bottleneck::kTargets) << round;
  }
  for (int i = 0; i < BottleneckJudge::kTimes; ++i) judge.judge(trainers);
  EXPECT_EQ(judge.current(), Bottleneck::kTrainers);
}

TEST(Bottleneck, SharesThatWaverChangeNothing) {
  BottleneckJudge judge;
  std::set<Bottleneck> named;
  for (int i = 0; i < 100; ++i) {
    const double waver = i / 8 % 2 == 0 ? 2 : -2;  // longer than kTimes on each side
    const Bottleneck now = judge.judge(
        times({.compute = 60, .features = 20 + waver, .evaluation = 20 - waver}, 98, 2));
    if (i >= BottleneckJudge::kTimes) named.insert(now);
  }
  EXPECT_EQ(named.size(), 1u);
  named.clear();
  for (int i = 0; i < 100; ++i) {  // a loss about the threshold
    const double loss = i / 8 % 2 == 0 ? 17 : 12;
    const Bottleneck now = judge.judge(times({.compute = 100 - loss, .features = loss}, 98, 2));
    if (i >= BottleneckJudge::kTimes) named.insert(now);
  }
  EXPECT_EQ(named.size(), 1u);
}

TEST(Bottleneck, EveryOneHasANameAndWords) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kBottlenecks; ++i) {
    names.insert(bottleneck_name(static_cast<Bottleneck>(i)));
    EXPECT_FALSE(bottleneck_words(static_cast<Bottleneck>(i), RunTimes{}).empty());
  }
  EXPECT_EQ(names.size(), kBottlenecks);
}

}  // namespace
}  // namespace percheron
