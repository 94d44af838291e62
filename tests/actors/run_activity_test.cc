// What the actors say about their work, as those who watch a run get it.

#include "actors/policy/run_activity.h"
#include "tests/base/fake_clock.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

namespace percheron {
namespace {

RunPhase phase(RunPhase::Step step, bool evaluating = false, bool copying = false) {
  return {step, evaluating, copying};
}

class RunActivityTest : public testing::Test {
 protected:
  void SetUp() override { begin(); }
  void begin() { activity.begin({{"cpu:0"}, {"cpu:1", "cpu:2"}}); }
  double trainer(int number, Occupation occupation) const {
    return activity.snapshot().trainers.at(static_cast<size_t>(number)).seconds[occupation];
  }
  double target(Occupation occupation) const {
    return activity.snapshot().targets.at(0).seconds[occupation];
  }
  void features_late(bool late) {
    MailboxChange state;
    state.features_late = late;
    activity.mailbox(state);
  }

  FakeClock clock;
  RunActivity activity{clock};
};

TEST_F(RunActivityTest, HomesOfWhichNothingIsSaidStayAsTheyWere) {
  MailboxChange news;
  news.homes = {{0, {3, 30}}, {1, {1, 10}}};
  activity.mailbox(news);
  news.homes = {{1, {0, 0}}};
  activity.mailbox(news);
  const auto homes = activity.snapshot().mailbox.homes;
  EXPECT_EQ(homes.at(0).tickets, 3);
  EXPECT_EQ(homes.at(0).bytes, 30u);
  EXPECT_EQ(homes.at(1).tickets, 0);
}

TEST_F(RunActivityTest, ATrainersTimeGoesToItsCause) {
  activity.phase(phase(RunPhase::Step::kHeldOut));
  clock.advance(5);
  activity.phase(phase(RunPhase::Step::kBetween));  // the checkpoint before the first step
  clock.advance(1);
  features_late(true);
  activity.phase(phase(RunPhase::Step::kComputing));
  clock.advance(2);
  activity.trainer_leased(0, std::nullopt);
  features_late(false);
  clock.advance(3);  // trainer 1 waits for trainer 0 alone
  activity.trainer_settled(0, 100, 4, 2.5);
  activity.phase(phase(RunPhase::Step::kReducing));
  clock.advance(0.25);
  activity.phase(phase(RunPhase::Step::kUpdating));
  clock.advance(0.75);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kEvaluation), 5);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kCheckpoint), 1);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kFeatures), 2);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kCompute), 2.5);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kDevice), 0.5);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kReduce), 0.25);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kUpdate), 0.75);
  EXPECT_DOUBLE_EQ(trainer(1, Occupation::kFeatures), 2);
  EXPECT_DOUBLE_EQ(trainer(1, Occupation::kStepEnd), 3);
  EXPECT_EQ(activity.snapshot().trainers[0].samples, 4);
}

// A trainer that computes while the features of another micro-batch come does not wait for them.
TEST_F(RunActivityTest, OnlyATrainerWithNothingToComputeWaitsForFeatures) {
  activity.phase(phase(RunPhase::Step::kComputing));
  activity.trainer_leased(0, std::nullopt);
  activity.trainer_leased_ahead(0, 1, 300);
  activity.trainer_leased_ahead(0, 1, 20);
  EXPECT_EQ(activity.snapshot().trainers[0].ahead, 2);
  EXPECT_EQ(activity.snapshot().trainers[0].ahead_bytes, 320u);
  clock.advance(3);
  activity.trainer_settled(0, 10, 1, 2, 1);  // The first waited for its features.
  EXPECT_EQ(activity.snapshot().trainers[0].ahead_bytes, 20u);
  clock.advance(2);
  activity.trainer_settled(0, 10, 1, 2, 0);
  clock.advance(4);
  activity.trainer_settled(0, 10, 1, 2, 1.5);
  activity.trainer_waits(0);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kCompute), 6);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kFeatures), 2.5);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kDevice), 0.5);
  EXPECT_EQ(activity.snapshot().trainers[0].ahead, 0);
  EXPECT_EQ((activity.snapshot().steals.at({0, 1})), 2);
  activity.trainer_leased(0, std::nullopt);
  activity.trainer_leased_ahead(0, std::nullopt, 5);
  activity.trainers_hold_nothing();
  clock.advance(1);
  activity.trainer_worked_in_vain(0, 10, 1);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kStepEnd), 1) << "it was taken from it";
  EXPECT_EQ(activity.snapshot().trainers[0].micro_batches, 4);
  activity.trainer_leased(0, std::nullopt);
  activity.trainer_leased_ahead(0, std::nullopt, 5);
  activity.trainer_gave_up(0, true, 5);
  EXPECT_EQ(activity.snapshot().trainers[0].ahead, 0);
  activity.trainer_gave_up(0, false, 7);
  clock.advance(1);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kStepEnd), 2);
}

// A dead worker computes nothing and waits for nothing; what was its is handed out again.
TEST_F(RunActivityTest, ALostWorkerIsIdleUntilItIsRestarted) {
  activity.phase(phase(RunPhase::Step::kComputing));
  activity.target_leased(0, 16);
  activity.trainer_leased(1, std::nullopt);
  clock.advance(1);
  activity.lost(WorkerKind::kTarget, 0);
  activity.lost(WorkerKind::kTrainer, 1);
  activity.leases_expired(WorkerKind::kTarget, 1);
  activity.leases_expired(WorkerKind::kTrainer, 4);
  clock.advance(2);
  // Others have not heard of it yet.
  activity.target_leased(0, std::nullopt);
  activity.target_waits(0, Occupation::kRoom);
  activity.trainer_settled(1, 100, 4, 1);
  clock.advance(3);
  RunActivitySnapshot seen = activity.snapshot();
  EXPECT_DOUBLE_EQ(target(Occupation::kIdle), 6);
  EXPECT_DOUBLE_EQ(trainer(1, Occupation::kIdle), 6);
  EXPECT_EQ(seen.trainers[1].micro_batches, 0);
  EXPECT_EQ(seen.lease_expirations, (std::array<int64_t, 2>{1, 4}));
  EXPECT_EQ(seen.in_flight.at(16), 1) << "once, however often it is handed out";
  activity.restarted(WorkerKind::kTarget, 0);
  activity.target_waits(0, Occupation::kRoom);
  clock.advance(4);
  activity.target_leased(0, std::nullopt);
  clock.advance(5);
  activity.target_settled(0, 100, 4, 5, false);
  seen = activity.snapshot();
  EXPECT_DOUBLE_EQ(target(Occupation::kRoom), 4);
  EXPECT_DOUBLE_EQ(target(Occupation::kCompute), 5);
  EXPECT_EQ(seen.restarts, (std::array<int64_t, 2>{1, 0}));
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kStepEnd), 15) << "waits for the step as before";
}

// The second of two micro-batches is begun beside the end of the first: their times once counted
// twice would make a target look slower than it is.
TEST_F(RunActivityTest, TwoMicroBatchesOfATargetAreCountedOneAfterTheOther) {
  activity.phase(phase(RunPhase::Step::kComputing));
  activity.target_leased(0, std::nullopt);
  clock.advance(1);
  activity.target_leased(0, std::nullopt);
  clock.advance(1);
  activity.target_settled(0, 100, 4, 2, true);
  activity.target_waits(0, Occupation::kRoom);  // It has one, and would take another.
  clock.advance(3);
  EXPECT_DOUBLE_EQ(target(Occupation::kCompute), 2);
  EXPECT_DOUBLE_EQ(target(Occupation::kRoom), 0);
  activity.target_settled(0, 100, 4, 2.5, false);
  clock.advance(4);
  EXPECT_DOUBLE_EQ(target(Occupation::kCompute), 4.5);
  EXPECT_DOUBLE_EQ(target(Occupation::kDevice), 0.5);
  EXPECT_DOUBLE_EQ(target(Occupation::kRoom), 4) << "from when it has none left";
}

// Work that was taken away, by a rewind or a change of members, is never settled.
TEST_F(RunActivityTest, WorkThatCountsNoMoreIsOverWhenItsWorkerIsIdle) {
  activity.phase(phase(RunPhase::Step::kComputing));
  activity.trainer_leased(0, std::nullopt);
  clock.advance(2);
  activity.trainer_waits(0);
  clock.advance(1);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kIdle), 2);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kStepEnd), 1);
  activity.trainer_leased(0, std::nullopt);
  activity.trainer_leased(0, std::nullopt);
  clock.advance(1);
  activity.trainer_settled(0, 10, 1, 1);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kCompute), 1);
}

TEST_F(RunActivityTest, AnEvaluationBesideAStepIsNoWaitForTheDevice) {
  activity.phase(phase(RunPhase::Step::kComputing, true));
  activity.trainer_leased(0, std::nullopt);
  clock.advance(4);
  activity.trainer_settled(0, 1, 1, 1);
  activity.phase(phase(RunPhase::Step::kUpdating, true));
  clock.advance(2);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kEvaluation), 5);
  EXPECT_DOUBLE_EQ(trainer(0, Occupation::kUpdate), 0);
}

TEST_F(RunActivityTest, ATargetsTimeGoesToItsCause) {
  activity.target_waits(0, Occupation::kRoom);
  clock.advance(2);
  activity.target_leased(0, 512);
  EXPECT_EQ(activity.snapshot().in_flight.at(512), 1);
  clock.advance(3);
  activity.target_settled(0, 700, 5, 3, false);
  activity.target_waits(0, Occupation::kWork);
  clock.advance(1);
  activity.freed(512);
  EXPECT_DOUBLE_EQ(target(Occupation::kRoom), 2);
  EXPECT_DOUBLE_EQ(target(Occupation::kCompute), 3);
  EXPECT_DOUBLE_EQ(target(Occupation::kWork), 1);
  EXPECT_EQ(activity.snapshot().in_flight.at(512), 0);
}

TEST_F(RunActivityTest, CountsGoOnWhenTheRunDoes) {
  activity.phase(phase(RunPhase::Step::kComputing));
  activity.target_leased(0, 0);
  activity.trainer_leased(0, 1);
  clock.advance(2);
  activity.trainer_settled(0, 10, 1, 2);
  activity.quarantined(3);
  StoreState store;
  store.cache_hits = 7;
  activity.tick(store);
  const RunActivitySnapshot before = activity.snapshot();

  begin();  // with a micro-batch of the target's still leased
  activity.quarantined(1);
  store.cache_hits = 2;
  activity.tick(store);
  const RunActivitySnapshot after = activity.snapshot();
  EXPECT_EQ(after.steals.at({0, 1}), 1);
  EXPECT_EQ(after.quarantined, 4);
  EXPECT_EQ(after.store.cache_hits, 9);
  EXPECT_EQ(after.trainers[0].micro_batches, 1);
  EXPECT_TRUE(after.in_flight.empty());
  for (size_t i = 0; i < kOccupations; ++i) {
    const auto occupation = static_cast<Occupation>(i);
    EXPECT_GE(after.trainers[0].seconds[occupation], before.trainers[0].seconds[occupation]);
    EXPECT_GE(after.targets[0].seconds[occupation], before.targets[0].seconds[occupation]);
  }
}

TEST_F(RunActivityTest, PartsOfAStepAddUpToIt) {
  for (int step = 0; step < 3; ++step) {
    activity.phase(phase(RunPhase::Step::kComputing));
    clock.advance(2);
    activity.phase(phase(RunPhase::Step::kReducing));
    clock.advance(0.5);
    activity.phase(phase(RunPhase::Step::kUpdating));
    clock.advance(0.25);
  }
  activity.phase(phase(RunPhase::Step::kOver));
  double sum = 0;
  for (const auto& histogram : activity.snapshot().phase_seconds) sum += histogram.sum;
  EXPECT_DOUBLE_EQ(sum, 3 * 2.75);
}

TEST_F(RunActivityTest, TheBottleneckAndTheCapacitiesAreThoseOfTheWindow) {
  activity.phase(phase(RunPhase::Step::kComputing));
  for (int i = 0; i < 10; ++i) {
    features_late(true);
    activity.target_leased(0, 0);
    clock.advance(2);
    activity.target_settled(0, 100, 8, 2, false);
    activity.trainer_leased(0, std::nullopt);
    clock.advance(0.5);
    activity.trainer_settled(0, 100, 8, 0.5);
    activity.tick({});
  }
  const RunActivitySnapshot seen = activity.snapshot();
  EXPECT_EQ(seen.bottleneck, Bottleneck::kTargets);
  EXPECT_NEAR(seen.capture_samples_per_second, 4, 1e-9);
  EXPECT_NEAR(seen.train_samples_per_second, 2 * 16, 1e-9);  // of both trainers together
}

TEST_F(RunActivityTest, ASilentSupervisorIsSeen) {
  activity.tick({});
  clock.advance(30);
  EXPECT_DOUBLE_EQ(activity.snapshot().silent_seconds, 30);
}

TEST_F(RunActivityTest, DevicesThatTellAreKeptUntilTheyDoNot) {
  activity.health("cuda:0", DeviceHealth{450, 0.8, 10, 20});
  EXPECT_DOUBLE_EQ(activity.snapshot().devices.at("cuda:0").power_watts, 450);
  activity.health("cuda:0", std::nullopt);
  EXPECT_TRUE(activity.snapshot().devices.empty());
}

TEST_F(RunActivityTest, ReadersAndActorsMeetWithoutARace) {
  std::atomic<bool> done{false};
  std::thread actors([&] {
    for (int i = 0; i < 2000; ++i) {
      activity.target_leased(0, i % 3);
      activity.target_settled(0, 1, 1, 0, false);
      activity.trainer_leased(i % 2, 1 - i % 2);
      activity.trainer_settled(i % 2, 1, 1, 0);
      activity.phase(phase(i % 2 == 0 ? RunPhase::Step::kComputing : RunPhase::Step::kUpdating));
      activity.freed(i % 3);
      clock.advance(0.01);
      activity.tick({});
    }
    done = true;
  });
  int64_t last = 0;
  while (!done) {
    const int64_t now = activity.snapshot().targets[0].micro_batches;
    EXPECT_GE(now, last);
    last = now;
  }
  actors.join();
  EXPECT_EQ(activity.snapshot().targets[0].micro_batches, 2000);
}

}  // namespace
}  // namespace percheron
