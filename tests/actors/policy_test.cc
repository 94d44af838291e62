#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "actors/policy/credits.h"
#include "actors/policy/epoch_termination.h"
#include "actors/policy/epoch_text.h"
#include "actors/policy/lease_table.h"
#include "actors/policy/quarantine.h"
#include "actors/policy/run_schedule.h"
#include "actors/policy/sampler_policy.h"
#include "actors/policy/step_ledger.h"
#include "actors/policy/step_plan.h"
#include "base/random.h"

namespace percheron {
namespace {

// SpecForge c3ecb528: 10 micro-batches in windows of 6.
TEST(StepPlan, LastStepOfAnEpochIsSmallerAndNeverDropped) {
  const StepPlan plan(6, {10, 10}, 0);
  EXPECT_EQ(plan.steps(), 4);
  EXPECT_EQ(plan.at(1).first, 6);
  EXPECT_EQ(plan.at(1).count, 4);
  EXPECT_EQ(plan.at(2).epoch, 1);
  EXPECT_EQ(plan.at(2).first, 0);
  EXPECT_TRUE(plan.last_of_epoch(1));
  EXPECT_FALSE(plan.last_of_epoch(2));
}

TEST(StepPlan, WhatIsSaidOfAnEpochTellsWhetherItWasWhole) {
  EXPECT_EQ(epoch_end_text(StepPlan(3, {7, 1}, 0), 0), "epoch 1 of 2 is done: 3 steps");
  EXPECT_EQ(epoch_end_text(StepPlan(3, {7, 1}, 0), 1), "epoch 2 of 2 is done: 1 step");
  EXPECT_EQ(epoch_end_text(StepPlan(3, {7, 7}, 4), 1),
            "epoch 2 of 2 ends after 1 of its 3 steps: train.steps is 4");
}

TEST(StepPlan, StepsMaxEndsInTheMiddleOfAnEpoch) {
  const StepPlan plan(3, {7, 7}, 4);
  EXPECT_EQ(plan.steps(), 4);
  EXPECT_EQ(plan.micro_batches(0), 7);
  EXPECT_EQ(plan.micro_batches(1), 3);
  EXPECT_TRUE(plan.last_of_epoch(3));
}

TEST(LeaseTable, OnlyTheHolderMaySettleAndOnlyOnce) {
  LeaseTable leases(10);
  const int64_t token = leases.grant({0, 1}, 3, 0);
  EXPECT_FALSE(leases.settle({0, 1}, 4, token));
  EXPECT_FALSE(leases.settle({0, 1}, 3, token + 1));
  EXPECT_TRUE(leases.settle({0, 1}, 3, token));
  EXPECT_FALSE(leases.settle({0, 1}, 3, token));
}

// SpecForge's K3 recipe: a lease in use is renewed, not lost.
TEST(LeaseTable, RenewedLeasesOutliveTheirFirstDeadline) {
  LeaseTable leases(10);
  const int64_t token = leases.grant({0, 1}, 3, 0);
  EXPECT_TRUE(leases.renew({0, 1}, 3, token, 9));
  EXPECT_TRUE(leases.expire(18).empty());
  EXPECT_EQ(leases.expire(19).size(), 1u);
  EXPECT_FALSE(leases.renew({0, 1}, 3, token, 20));
}

// SpecForge 42fb4571.
TEST(Credits, LimitBelowOneStepIsRefusedNamingTheKeyAndTheNeed) {
  EXPECT_TRUE(Credits::check_limit(100, 100).ok());
  const Status status = Credits::check_limit(99, 100);
  ASSERT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("features.bytes_max is 99"), std::string::npos);
  EXPECT_NE(status.message().find("100 bytes"), std::string::npos);
}

TEST(Credits, NoGrantBeyondTheLimitAndReleaseMakesRoom) {
  Credits credits({100});
  EXPECT_TRUE(credits.try_grant(0, {{0, 0}, 0, 60, 100}, 0));
  EXPECT_TRUE(credits.try_grant(0, {{0, 1}, 0, 40, 100}, 0));
  EXPECT_FALSE(credits.try_grant(0, {{0, 2}, 1, 1, 1}, 0));
  credits.release({0, 0});
  credits.release({0, 0});
  EXPECT_EQ(credits.in_use(0), 40u);
  EXPECT_EQ(credits.peak(0), 100u);
}

TEST(Credits, OnlySoManyMicroBatchesOfLaterStepsAreAhead) {
  Credits credits({100}, 3);
  for (int64_t index = 0; index < 3; ++index) {
    EXPECT_TRUE(credits.try_grant(0, {{0, index}, index, 1, 1}, 0)) << index;
  }
  EXPECT_FALSE(credits.try_grant(0, {{0, 3}, 1, 1, 1}, 0));
  EXPECT_TRUE(credits.try_grant(0, {{0, 4}, 0, 1, 1}, 0)) << "the open step goes on";
  credits.release({0, 0});
  EXPECT_FALSE(credits.try_grant(0, {{0, 3}, 1, 1, 1}, 0));
  credits.node_lost(0);
  EXPECT_TRUE(credits.try_grant(0, {{0, 3}, 1, 1, 1}, 0));
}

TEST(Credits, LaterStepsLeaveRoomForWhatTheOpenStepHoldsElsewhere) {
  Credits credits({100, 100});
  EXPECT_TRUE(credits.try_grant(1, {{0, 0}, 0, 60, 60}, 0));
  EXPECT_FALSE(credits.try_grant(0, {{0, 1}, 1, 50, 50}, 0)) << "step 0 may have to move here";
  EXPECT_TRUE(credits.try_grant(0, {{0, 1}, 1, 40, 40}, 0));
  credits.release({0, 0});
  EXPECT_TRUE(credits.try_grant(0, {{0, 2}, 2, 50, 50}, 1));
}

// SpecForge's K3 recipe: four rows of 65,536 tokens with 5.25 GiB of features each, room for two of
// them, and a consumer that takes five times the time of a lease.
TEST(Credits, FourRowsOf65536TokensGoThroughRoomForTwo) {
  constexpr uint64_t kSample = 65536ull * 84 * 1024;
  static_assert(kSample == (21ull << 30) / 4, "5.25 GiB");
  constexpr int64_t kTtl = 1'000'000'000;
  Credits credits({2 * kSample});
  LeaseTable leases(kTtl);
  int64_t now = 0, next = 0;
  std::vector<int64_t> made, consumed;
  while (consumed.size() < 4) {
    const auto open = static_cast<int64_t>(consumed.size());
    while (next < 4 && credits.try_grant(0, {{0, next}, next, kSample, kSample}, open)) {
      made.push_back(next++);
    }
    ASSERT_GT(made.size(), consumed.size()) << "the open step always finds room";
    const int64_t index = made[consumed.size()];
    const int64_t token = leases.grant({0, index}, 0, now);
    for (const int64_t end = now + 5 * kTtl; now < end; now += kTtl / 2) {
      EXPECT_TRUE(leases.expire(now).empty());
      EXPECT_TRUE(leases.renew({0, index}, 0, token, now));
    }
    EXPECT_TRUE(leases.settle({0, index}, 0, token));
    credits.release({0, index});
    consumed.push_back(index);
  }
  EXPECT_EQ(consumed, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(credits.peak(0), 2 * kSample);
  EXPECT_EQ(credits.in_use(0), 0u);
}

// Random grants, frees and node deaths: invariant 2, and the oldest always finds room.
TEST(Credits, OldestAlwaysFitsSomewhereAfterANodeDies) {
  const uint64_t seed = 7;
  for (uint64_t round = 0; round < 300; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
    Random random = Random::keyed(seed, "credits", round);
    const uint64_t limit = 100;
    const int nodes = 1 + static_cast<int>(random.below(3));
    int64_t next = 0;
    std::vector<WorkUnit> units;
    for (int64_t step = 0; step < 30; ++step) {
      const int64_t count = 1 + static_cast<int64_t>(random.below(4));
      std::vector<uint64_t> sizes;
      uint64_t sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += sizes.emplace_back(1 + random.below(25));
      for (uint64_t bytes : sizes) units.push_back({{0, next++}, step, bytes, sum});
    }
    Credits credits(std::vector<uint64_t>(nodes, limit));
    SamplerPolicy sampler(
        [&units, i = size_t{0}]() mutable -> std::optional<WorkUnit> {
          if (i == units.size()) return std::nullopt;
          return units[i++];
        },
        credits, 0);
    std::map<MicroBatchId, int> stored;  // micro-batch to node
    int64_t open = 0;
    for (int guard = 0; open < 30; ++guard) {
      ASSERT_LT(guard, 20000) << "dead-lock at step " << open;
      const int node = static_cast<int>(random.below(nodes));
      if (random.below(100) == 0 && nodes > 1) {
        sampler.node_lost(node);
        std::erase_if(stored, [node](const auto& entry) { return entry.second == node; });
      } else if (auto production = sampler.next(node, node, 0)) {
        ASSERT_TRUE(sampler.produced(production->unit.id, node, production->lease));
        ASSERT_TRUE(stored.emplace(production->unit.id, node).second);
      }
      for (int n = 0; n < nodes; ++n) EXPECT_LE(credits.peak(n), limit);
      std::vector<MicroBatchId> step;
      bool whole = true;
      for (const WorkUnit& unit : units) {
        if (unit.step != open) continue;
        whole &= stored.count(unit.id) != 0;
        step.push_back(unit.id);
      }
      if (!whole) continue;
      for (MicroBatchId id : step) {
        sampler.freed(id);
        stored.erase(id);
      }
      sampler.set_open_step(++open);
    }
  }
}

TEST(SamplerPolicy, LostTargetsWorkIsHandedOutAgainFirst) {
  std::vector<WorkUnit> units = {{{0, 0}, 0, 1, 1}, {{0, 1}, 1, 1, 1}, {{0, 2}, 2, 1, 1}};
  Credits credits({10});
  SamplerPolicy sampler(
      [&units, i = size_t{0}]() mutable -> std::optional<WorkUnit> {
        if (i == units.size()) return std::nullopt;
        return units[i++];
      },
      credits, 0);
  const auto first = sampler.next(0, 0, 0);
  sampler.next(1, 0, 0);
  EXPECT_EQ(sampler.target_lost(0), 1u);
  EXPECT_FALSE(sampler.produced(first->unit.id, 0, first->lease)) << "a zombie's word";
  EXPECT_EQ(sampler.stale(), 1);
  const auto again = sampler.next(1, 0, 0);
  EXPECT_EQ(again->unit.id.index, 0);
  EXPECT_EQ(again->generation, 1);
  EXPECT_FALSE(sampler.epoch_exhausted(0));
}

TEST(EpochTermination, EndsOnceWhateverTheOrder) {
  Random random(11);
  for (int round = 0; round < 200; ++round) {
    EpochTermination epoch(2, {0, 1});
    std::vector<int> events = {0, 1, 2, 3, 3, 4};
    shuffle(std::span(events), random);
    epoch.leased();
    int ends = 0;
    for (size_t i = 0; i < events.size(); ++i) {
      EXPECT_EQ(ends, 0) << "before the last condition";
      if (events[i] == 0) epoch.sampler_exhausted();
      if (events[i] == 1) epoch.target_done(0);
      if (events[i] == 2) epoch.target_lost(1);
      if (events[i] == 3) epoch.step_committed();
      if (events[i] == 4) epoch.settled();
      ends += epoch.report_end() ? 1 : 0;
    }
    EXPECT_EQ(ends, 1);
    EXPECT_FALSE(epoch.report_end());
  }
}

TEST(EpochTermination, RefilledSamplerKeepsTheEpochOpen) {
  EpochTermination epoch(1, {0});
  epoch.sampler_exhausted();
  epoch.target_done(0);
  epoch.sampler_refilled();
  epoch.target_joined(1);
  epoch.step_committed();
  EXPECT_FALSE(epoch.report_end());
  epoch.sampler_exhausted();
  EXPECT_FALSE(epoch.report_end());
  epoch.target_done(1);
  EXPECT_TRUE(epoch.report_end());
}

TEST(StepLedger, CommitsWhenEveryMemberReducedAndOpensTheNextWhenAllApplied) {
  StepLedger ledger({0, 1}, 5);
  EXPECT_TRUE(ledger.computed(5, 0));
  EXPECT_FALSE(ledger.reduced(0, 5, 0));
  EXPECT_FALSE(ledger.reduced(0, 5, 0)) << "said twice";
  EXPECT_TRUE(ledger.reduced(1, 5, 0));
  ledger.commit();
  EXPECT_FALSE(ledger.applied(1, 5));
  EXPECT_TRUE(ledger.applied(0, 5));
  EXPECT_EQ(ledger.step(), 6);
  EXPECT_EQ(ledger.stale(), 1);
}

TEST(StepLedger, DeathBeforeTheCommitUndoesTheStepAndAfterItNothing) {
  StepLedger before({0, 1}, 0);
  before.computed(0, 0);
  before.reduced(0, 0, 0);
  EXPECT_EQ(before.member_lost(1), StepLedger::Loss::kRecompute);
  EXPECT_FALSE(before.reduced(0, 0, 0)) << "of the old membership";
  EXPECT_TRUE(before.computed(0, 1));
  EXPECT_TRUE(before.reduced(0, 0, 1));

  StepLedger after({0, 1}, 0);
  after.computed(0, 0);
  after.reduced(0, 0, 0);
  after.reduced(1, 0, 0);
  after.commit();
  EXPECT_FALSE(after.applied(0, 0));
  EXPECT_EQ(after.member_lost(1), StepLedger::Loss::kStepOver);
  EXPECT_EQ(after.step(), 1);
  EXPECT_EQ(after.committed_steps(), 1);
}

// Random messages, repeats and deaths: a step is committed once, and only by a whole membership.
TEST(StepLedger, EveryStepIsCommittedOnceUnderRandomMessages) {
  const uint64_t seed = 99;
  for (uint64_t round = 0; round < 300; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
    Random random = Random::keyed(seed, "ledger", round);
    StepLedger ledger({0, 1, 2, 3}, 0);
    std::map<int64_t, int> commits;
    for (int event = 0; event < 2000 && !ledger.members().empty(); ++event) {
      const int64_t step = ledger.step() - static_cast<int64_t>(random.below(2));
      const int64_t membership = ledger.membership() - static_cast<int64_t>(random.below(2));
      const int member = static_cast<int>(random.below(5));
      switch (random.below(random.below(50) == 0 ? 5 : 4)) {
        case 0: ledger.computed(step, membership); break;
        case 1:
        case 2:
          if (ledger.reduced(member, step, membership)) {
            EXPECT_EQ(step, ledger.step());
            EXPECT_EQ(membership, ledger.membership());
            ++commits[ledger.step()];
            ledger.commit();
          }
          break;
        case 3: ledger.applied(member, step); break;
        case 4:
          if (ledger.members().size() > 1 && random.below(3) == 0) ledger.member_lost(member);
          break;
      }
    }
    for (int64_t step = 0; step < ledger.step(); ++step) EXPECT_EQ(commits[step], 1) << step;
  }
}

TEST(RunSchedule, EvaluatesAtTheStartAtTheNamedStepsAndAtTheEnd) {
  const EvaluationPolicy policy(true, 0, {160, 330}, 1000);
  for (int64_t step : {0, 160, 330, 1000}) EXPECT_TRUE(policy.due(step)) << step;
  EXPECT_FALSE(policy.due(161));
  EXPECT_FALSE(EvaluationPolicy(false, 10, {}, 100).due(10));
  EXPECT_TRUE(EvaluationPolicy(true, 10, {}, 100).due(10));
}

TEST(RunSchedule, CheckpointsBeforeTheFirstStepWithEvaluationsAndAtTheEnd) {
  const CheckpointPolicy policy(50, 120);
  EXPECT_TRUE(policy.due(0, false));
  EXPECT_TRUE(policy.due(50, false));
  EXPECT_TRUE(policy.due(7, true));
  EXPECT_FALSE(policy.due(7, false));
  EXPECT_TRUE(policy.due(120, false));
}

TEST(RunSchedule, SecondSignalQuits) {
  const StopPolicy policy;
  EXPECT_EQ(policy.wish(0), StopPolicy::Wish::kGoOn);
  EXPECT_EQ(policy.wish(1), StopPolicy::Wish::kStopAtBoundary);
  EXPECT_EQ(policy.wish(2), StopPolicy::Wish::kQuit);
}

TEST(RunSchedule, BestIsTheHighestAndTheEarliestOfEquals) {
  BestPolicy best;
  EXPECT_TRUE(best.better(0, 1.0));
  EXPECT_FALSE(best.better(10, 1.0));
  EXPECT_TRUE(best.better(20, 1.5));
  EXPECT_EQ(best.step(), 20);
}

TEST(StepPlan, BeginsAStepWhereTheOneBeforeEnds) {
  const StepPlan plan(3, {7, 7}, 5);
  EXPECT_EQ(plan.begin(0), (MicroBatchId{0, 0}));
  EXPECT_EQ(plan.begin(2), (MicroBatchId{0, 6}));
  EXPECT_EQ(plan.begin(3), (MicroBatchId{1, 0}));
  EXPECT_EQ(plan.begin(5), (MicroBatchId{1, 6})) << "where a longer run goes on";
  EXPECT_EQ(StepPlan(3, {7}, 0).begin(3), (MicroBatchId{1, 0}));
}

TEST(StepPlan, CountsStepsLargerThanAnyEpoch) {
  const StepPlan plan(std::numeric_limits<int64_t>::max(), {7, 7}, 0);
  EXPECT_EQ(plan.steps(), 2);
  EXPECT_EQ(plan.at(1).count, 7);
  EXPECT_EQ(plan.micro_batches(1), 7);
}

TEST(Quarantine, TellsTrainingFromHeldOutSamplesOfTheSameNumber) {
  Quarantine quarantine(1000);
  EXPECT_TRUE(quarantine.add(SampleSet::kTraining, 3, "bad").ok());
  EXPECT_TRUE(quarantine.add(SampleSet::kTraining, 3, "bad again").ok());
  EXPECT_TRUE(quarantine.add(SampleSet::kHeldOut, 3, "bad").ok());
  EXPECT_EQ(quarantine.count(), 2);
  const std::vector<std::string> news = quarantine.take_news();
  ASSERT_EQ(news.size(), 2u);
  EXPECT_EQ(news[0], "sample 3 is set aside: bad");
  EXPECT_EQ(news[1], "held-out sample 3 is set aside: bad");
}

}  // namespace
}  // namespace percheron
