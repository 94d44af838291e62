// Who is silent, stuck or holds work for too long, by a clock that the test turns.

#include "actors/policy/silence_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/policy/lease_watch.h"
#include "actors/policy/reader_turn.h"

namespace percheron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kTick = 0.1;

// Asks `watch` every 0.1 s from `from` to `to`, while those of `alive` give signs of life; returns
// who was silent.
std::vector<int64_t> watch_until(SilenceWatch& watch, double from, double to,
                                 const std::vector<int64_t>& alive) {
  std::vector<int64_t> silent;
  for (int i = 1; from + i * kTick <= to + 1e-9; ++i) {
    const double now = from + i * kTick;
    if (i % 5 == 0) {
      for (int64_t who : alive) watch.heard(who, now);
    }
    for (int64_t who : watch.take_silent(now)) silent.push_back(who);
  }
  return silent;
}

TEST(SilenceWatch, OnlyTheSilentOneIsFoundOnceAfterItsTime) {
  SilenceWatch watch({.silence_seconds = 3, .first_seconds = 3, .gap_seconds = 1});
  watch.watch(1, 0);
  watch.watch(2, 0);
  EXPECT_THAT(watch_until(watch, 0, 10, {1, 2}), IsEmpty());
  EXPECT_THAT(watch_until(watch, 10, 12.8, {1}), IsEmpty());
  EXPECT_THAT(watch_until(watch, 12.8, 13.2, {1}), ElementsAre(2));
  EXPECT_THAT(watch_until(watch, 13.2, 30, {1}), IsEmpty());
  watch.heard(2, 30);
  EXPECT_FALSE(watch.watches(2));
}

TEST(SilenceWatch, AProcessThatStartsHasLongerUntilItsFirstSign) {
  SilenceWatch watch({.silence_seconds = 3, .first_seconds = 30, .gap_seconds = 1});
  watch.watch(1, 0);
  watch.watch(2, 0);
  EXPECT_THAT(watch_until(watch, 0, 29, {1}), IsEmpty());
  EXPECT_THAT(watch_until(watch, 29, 31, {1}), ElementsAre(2));
  EXPECT_THAT(watch_until(watch, 31, 35, {}), ElementsAre(1));
}

TEST(SilenceWatch, NobodyIsBlamedForATimeInWhichTheWatchItselfWasStopped) {
  SilenceWatch watch({.silence_seconds = 3, .first_seconds = 3, .gap_seconds = 1});
  watch.watch(1, 0);
  watch.watch(2, 0);
  EXPECT_THAT(watch_until(watch, 0, 5, {1, 2}), IsEmpty());
  // An hour without a call, then both have their whole time again: one speaks, one does not.
  EXPECT_THAT(watch_until(watch, 3605, 3607.5, {1}), IsEmpty());
  EXPECT_THAT(watch_until(watch, 3607.5, 3609, {1}), ElementsAre(2));
}

TEST(SilenceWatch, WhoIsForgottenMayBeSilent) {
  SilenceWatch watch({.silence_seconds = 3, .first_seconds = 3, .gap_seconds = 1});
  watch.watch(1, 0);
  watch.forget(1);
  EXPECT_THAT(watch_until(watch, 0, 10, {}), IsEmpty());
}

TEST(ReaderTurn, AReaderThatStaysAtOneThingDoesNotMoveUnlessItRests) {
  ReaderTurn turn;
  EXPECT_TRUE(turn.moves());
  for (const auto begin : {&ReaderTurn::deals, &ReaderTurn::waits}) {
    (turn.*begin)();
    EXPECT_TRUE(turn.moves());  // It has just begun.
    EXPECT_FALSE(turn.moves());
    (turn.*begin)();
    EXPECT_TRUE(turn.moves());
  }
  EXPECT_FALSE(turn.deals_now());
  turn.deals();
  EXPECT_TRUE(turn.deals_now());
  turn.rests();
  EXPECT_TRUE(turn.moves());
  EXPECT_TRUE(turn.moves());
}

// The numbers of those that are overdue between `from` and `to`.
std::vector<int> overdue_until(LeaseWatch& leases, double from, double to) {
  std::vector<int> numbers;
  for (double now = from + 1; now <= to; now += 1) {
    for (const LeaseWatch::Overdue& overdue : leases.take_overdue(now)) {
      numbers.push_back(overdue.number + (overdue.kind == WorkerKind::kTrainer ? 100 : 0));
    }
  }
  return numbers;
}

TEST(LeaseWatch, AWorkerIsOverdueOnceForWhatItHolds) {
  LeaseWatch leases(600);
  leases.leased(WorkerKind::kTarget, 1, {0, 7}, 0);
  leases.leased(WorkerKind::kTrainer, 1, {0, 5}, 0);
  leases.leased(WorkerKind::kTrainer, 2, {0, 6}, 0);
  leases.settled(WorkerKind::kTrainer, 2);
  EXPECT_THAT(overdue_until(leases, 0, 599), IsEmpty());
  EXPECT_THAT(overdue_until(leases, 599, 2000), ElementsAre(1, 101));
  leases.leased(WorkerKind::kTarget, 1, {0, 8}, 2000);
  leases.settled(WorkerKind::kTarget, 1, {0, 8}, 2400);
  leases.leased(WorkerKind::kTarget, 1, {0, 9}, 2500);
  EXPECT_THAT(overdue_until(leases, 2000, 3099), IsEmpty());
  EXPECT_THAT(overdue_until(leases, 3099, 3100), ElementsAre(1));
}

// The second waits for the first: it was once not watched at all when the first was settled.
TEST(LeaseWatch, OfTwoThatATargetHoldsEachHasItsOwnTime) {
  LeaseWatch leases(600);
  leases.leased(WorkerKind::kTarget, 0, {0, 0}, 0);
  leases.leased(WorkerKind::kTarget, 0, {0, 1}, 10);
  EXPECT_THAT(overdue_until(leases, 0, 500), IsEmpty());
  leases.settled(WorkerKind::kTarget, 0, {0, 0}, 500);
  EXPECT_THAT(overdue_until(leases, 500, 1099), IsEmpty());
  EXPECT_THAT(overdue_until(leases, 1099, 1100), ElementsAre(0));

  // A sample that is not finite comes out of turn: what it is behind is over, too.
  leases.leased(WorkerKind::kTarget, 0, {0, 2}, 2000);
  leases.leased(WorkerKind::kTarget, 0, {0, 3}, 2000);
  leases.settled(WorkerKind::kTarget, 0, {0, 3}, 2100);
  leases.settled(WorkerKind::kTarget, 0, {0, 2}, 2200);
  EXPECT_THAT(overdue_until(leases, 2000, 4000), IsEmpty());
}

TEST(LeaseWatch, OtherWorkOfTheDevicesIsNotCounted) {
  LeaseWatch leases(600);
  leases.leased(WorkerKind::kTarget, 0, {0, 0}, 0);
  EXPECT_THAT(overdue_until(leases, 0, 500), IsEmpty());
  leases.excuse(500);
  EXPECT_THAT(overdue_until(leases, 500, 1099), IsEmpty());
  EXPECT_THAT(overdue_until(leases, 1099, 1100), ElementsAre(0));
}

TEST(LeaseWatch, AnUpdateThatDoesNotEndIsNoticedBesideMicroBatches) {
  LeaseWatch leases(600);
  leases.updates(0, 17, 0);
  leases.updates(1, 17, 0);
  leases.updated(1);
  leases.leased(WorkerKind::kTrainer, 1, {0, 36}, 0);
  leases.settled(WorkerKind::kTrainer, 1);
  leases.leased(WorkerKind::kTrainer, 0, {0, 35}, 0);
  leases.settled(WorkerKind::kTrainer, 0);  // The update goes on.
  EXPECT_THAT(overdue_until(leases, 0, 2000), ElementsAre(100));
  leases.updates(0, 18, 2000);
  leases.lost(WorkerKind::kTrainer, 0);
  EXPECT_THAT(overdue_until(leases, 2000, 4000), IsEmpty());
}

TEST(LeaseWatch, WhatIsHeldAheadIsMeasuredFromTheBeginningOfItsComputation) {
  LeaseWatch leases(600);
  leases.leased(WorkerKind::kTrainer, 1, {0, 5}, 0);
  leases.leased_ahead(1, {0, 6}, 0);
  leases.leased_ahead(1, {0, 7}, 0);
  leases.settled(WorkerKind::kTrainer, 1, {0, 5}, 500);
  EXPECT_THAT(overdue_until(leases, 0, 1099), IsEmpty()) << "6 was begun at 500";
  leases.settled(WorkerKind::kTrainer, 1, {0, 6}, 1099);
  EXPECT_THAT(overdue_until(leases, 1099, 1698), IsEmpty());
  EXPECT_THAT(overdue_until(leases, 1698, 1699), ElementsAre(101)) << "7";
  leases.leased(WorkerKind::kTrainer, 2, {0, 8}, 1700);
  leases.leased_ahead(2, {0, 9}, 1700);
  // It could not be read, which says nothing of its device.
  leases.settled(WorkerKind::kTrainer, 2, {0, 9}, 2000);
  EXPECT_THAT(overdue_until(leases, 1700, 2299), IsEmpty());
  EXPECT_THAT(overdue_until(leases, 2299, 4000), ElementsAre(102));
  leases.leased(WorkerKind::kTrainer, 3, {0, 10}, 4000);
  leases.leased_ahead(3, {0, 11}, 4000);
  leases.leased(WorkerKind::kTrainer, 3, {0, 12}, 4000);  // The others were taken from it.
  leases.settled(WorkerKind::kTrainer, 3, {0, 12}, 4001);
  EXPECT_THAT(overdue_until(leases, 4000, 6000), IsEmpty());
}

TEST(LeaseWatch, NoTimeMeansForEver) {
  LeaseWatch leases(0);
  leases.leased(WorkerKind::kTarget, 0, {0, 0}, 0);
  EXPECT_THAT(overdue_until(leases, 0, 10'000), IsEmpty());
}

}  // namespace
}  // namespace percheron
