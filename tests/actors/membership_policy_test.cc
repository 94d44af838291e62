#include <gtest/gtest.h>

#include "actors/policy/join_round.h"
#include "actors/policy/sampler_policy.h"
#include "actors/policy/step_ledger.h"
#include "actors/policy/worker_roll.h"

namespace percheron {
namespace {

TEST(WorkerRoll, EachLossAndReturnCountsOnce) {
  WorkerRoll roll(2, 1);
  EXPECT_TRUE(roll.lost(WorkerKind::kTarget, 1));
  EXPECT_FALSE(roll.lost(WorkerKind::kTarget, 1));
  EXPECT_TRUE(roll.there(WorkerKind::kTarget, 0));
  EXPECT_FALSE(roll.there(WorkerKind::kTarget, 1));
  EXPECT_TRUE(roll.ready(WorkerKind::kTarget, 1));
  EXPECT_FALSE(roll.ready(WorkerKind::kTarget, 1));
  EXPECT_FALSE(roll.ready(WorkerKind::kTrainer, 1)) << "the run has no such place";
  EXPECT_FALSE(roll.lost(WorkerKind::kTrainer, -1));
}

TEST(WorkerRoll, NumbersOnlyGrowAndARetiredWorkerDoesNotComeBack) {
  WorkerRoll roll(1, 1);
  EXPECT_EQ(roll.add(WorkerKind::kTrainer), 1);
  EXPECT_FALSE(roll.there(WorkerKind::kTrainer, 1)) << "until it is ready";
  EXPECT_TRUE(roll.ready(WorkerKind::kTrainer, 1));
  EXPECT_TRUE(roll.retire(WorkerKind::kTrainer, 0));
  EXPECT_FALSE(roll.retire(WorkerKind::kTrainer, 0));
  EXPECT_TRUE(roll.there(WorkerKind::kTrainer, 0)) << "until it has left";
  EXPECT_TRUE(roll.lost(WorkerKind::kTrainer, 0));
  EXPECT_FALSE(roll.ready(WorkerKind::kTrainer, 0));
  EXPECT_TRUE(roll.known(WorkerKind::kTrainer, 0)) << "its last words are no news";
  EXPECT_EQ(roll.add(WorkerKind::kTrainer), 2);
  EXPECT_FALSE(roll.retire(WorkerKind::kTarget, 1));
}

TEST(Homes, FollowWorkersThatComeAndGo) {
  Homes homes({0, 0}, {0});
  EXPECT_EQ(homes.of_target(1), 0);
  homes.add(WorkerKind::kTrainer, 0);
  EXPECT_EQ(homes.of_trainer(1), 1);
  EXPECT_EQ(homes.of_target(1), 1);
  homes.retire(WorkerKind::kTrainer, 0);
  EXPECT_EQ(homes.of_target(0), 1) << "nobody takes from the home of trainer 0 first";
  homes.add(WorkerKind::kTrainer, 4);
  homes.add(WorkerKind::kTarget, 4);
  EXPECT_EQ(homes.of_target(2), 4);
  EXPECT_EQ(homes.of_target(0), 0);
  EXPECT_EQ(homes.of_trainer(2), 4);
  homes.retire(WorkerKind::kTrainer, 1);
  EXPECT_EQ(homes.of_target(0), 4);
}

TEST(Homes, OneNodeHasADequeForEachTrainer) {
  const Homes homes({0, 0, 0}, {0, 0});
  EXPECT_EQ(homes.of_trainer(1), 1);
  EXPECT_EQ(homes.of_target(0), 0);
  EXPECT_EQ(homes.of_target(1), 1);
  EXPECT_EQ(homes.of_target(2), 0);
}

TEST(Homes, SeveralNodesHaveOneEachWhereTheyTrain) {
  const Homes homes({4, 5, 6}, {5, 4, 5});
  EXPECT_EQ(homes.of_trainer(0), 5);
  EXPECT_EQ(homes.of_trainer(2), 5);
  EXPECT_EQ(homes.of_target(0), 4) << "features stay where they were made";
  EXPECT_EQ(homes.of_target(1), 5);
  EXPECT_EQ(homes.of_target(2), 5) << "nobody trains on node 6";
}

TEST(JoinRound, AdmitsWhoHasTheMembersParametersAndRefusesOthers) {
  JoinRound round(3, {4, 5}, {0, 1});
  EXPECT_TRUE(round.restored(0, 7));
  EXPECT_FALSE(round.restored(0, 8)) << "answers once";
  EXPECT_FALSE(round.restored(9, 7));
  EXPECT_TRUE(round.restored(1, 7));
  EXPECT_TRUE(round.restored(4, 6));
  EXPECT_EQ(round.missing(), std::set<int>{5});
  EXPECT_TRUE(round.restored(5, 7));
  const JoinRound::Verdict verdict = round.verdict();
  EXPECT_EQ(verdict.admitted, std::vector<int>{5});
  EXPECT_EQ(verdict.refused, std::vector<int>{4});
  EXPECT_FALSE(verdict.members_differ);
}

TEST(JoinRound, MembersThatDifferAreSeen) {
  JoinRound round(3, {2}, {0, 1});
  for (int trainer : {0, 1, 2}) round.restored(trainer, trainer == 1 ? 8 : 7);
  EXPECT_TRUE(round.verdict().members_differ);
}

TEST(JoinRound, WhoIsLostIsAskedNoMore) {
  JoinRound round(3, {4, 5}, {0});
  round.restored(4, 7);
  round.restored(0, 8);
  round.left(5);
  EXPECT_TRUE(round.missing().empty());
  round.left(0);
  EXPECT_EQ(round.verdict().admitted, std::vector<int>{4}) << "nobody is left to differ from";
}

TEST(StepLedger, WithoutMembersTheRunGoesBackAndNewcomersBegin) {
  StepLedger ledger({0}, 5);
  ASSERT_TRUE(ledger.computed(5, 0));
  EXPECT_EQ(ledger.member_lost(0), StepLedger::Loss::kNobody);
  ledger.restart(3);
  EXPECT_TRUE(ledger.member_joined(0));
  EXPECT_EQ(ledger.step(), 3);
  EXPECT_FALSE(ledger.computed(3, 0)) << "a word of the membership before";
  EXPECT_TRUE(ledger.computed(3, ledger.membership()));
}

/// Micro-batches 0, 1, ... of epoch 0, two a step.
class Units {
 public:
  std::optional<WorkUnit> next() { return WorkUnit{{0, next_}, next_++ / 2, 1, 2}; }
  void go_back(int64_t index) { next_ = index; }

 private:
  int64_t next_ = 0;
};

TEST(Sampler, RestartHandsOutAnewAndOldLeasesStayStale) {
  Units units;
  Credits credits({4});
  SamplerPolicy sampler([&units] { return units.next(); }, credits, 0);
  const auto first = sampler.next(0, 0, 0);
  const auto second = sampler.next(1, 0, 0);
  units.go_back(0);
  sampler.restart();
  EXPECT_EQ(credits.in_use(0), 0u);
  const auto again = sampler.next(0, 0, 0);
  EXPECT_EQ(again->unit.id.index, 0);
  EXPECT_FALSE(sampler.produced(first->unit.id, 0, first->lease));
  EXPECT_FALSE(sampler.produced(second->unit.id, 1, second->lease));
  EXPECT_TRUE(sampler.produced(again->unit.id, 0, again->lease));
}

TEST(Sampler, LostNodeGivesBackItsRoomAndOnlyLeasesAreQueuedAgain) {
  Units units;
  Credits credits({4, 4});
  SamplerPolicy sampler([&units] { return units.next(); }, credits, 0);
  const auto made = sampler.next(0, 1, 0);
  ASSERT_TRUE(sampler.produced(made->unit.id, 0, made->lease));
  const auto leased = sampler.next(0, 1, 0);
  EXPECT_EQ(sampler.leases_of_node_lost(1), 1u);
  EXPECT_EQ(credits.in_use(1), 0u);
  EXPECT_EQ(sampler.next(2, 0, 0)->unit.id, leased->unit.id);
  sampler.produce_again(made->unit.id);
  EXPECT_EQ(sampler.next(3, 0, 0)->unit.id, made->unit.id);
  sampler.freed(made->unit.id);
  sampler.produce_again(made->unit.id);
  EXPECT_EQ(sampler.next(4, 0, 0)->unit.id.index, 2) << "what is freed is needed no more";
}

}  // namespace
}  // namespace percheron
