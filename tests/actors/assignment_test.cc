// Who gets which ticket: the assignments, trainers that wait in line, and what a ticket costs.

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <vector>

#include "actors/policy/idle_targets.h"
#include "actors/policy/mailbox_policy.h"
#include "base/random.h"

namespace percheron {
namespace {

std::vector<int> members(int count) {
  std::vector<int> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

Ticket ticket(int64_t index, int target, int home = 0) {
  Ticket result;
  result.id = {0, index};
  result.target = target;
  result.node = result.home = home;
  result.bytes = 1;
  return result;
}

/// Hands out all that it can and computes it at once; how many each trainer got.
std::map<int, int64_t> drain(MailboxPolicy& mailbox) {
  std::map<int, int64_t> loads;
  while (const auto next = mailbox.hand_out(0)) {
    ++loads[next->trainer];
    EXPECT_TRUE(mailbox.computed(next->work.ticket.id, next->trainer, next->work.lease));
    mailbox.wait(next->trainer, next->trainer);
  }
  return loads;
}

/// A step of 60 micro-batches made by `targets` targets in turn, for three trainers.
std::map<int, int64_t> loads_of(Assignment assignment, int targets) {
  MailboxPolicy mailbox(assignment, members(3), 0);
  for (int trainer : members(3)) mailbox.wait(trainer, trainer);
  mailbox.open_step({0, 0, 0, 60});
  for (int64_t index = 0; index < 60; ++index) {
    const int target = static_cast<int>(index) % targets;
    mailbox.put(ticket(index, target, target % 3));
  }
  std::map<int, int64_t> loads = drain(mailbox);
  EXPECT_TRUE(mailbox.step_computed());
  return loads;
}

using Loads = std::map<int, int64_t>;

// TorchSpec ties producers to consumers: five on three, i modulo three, leave loads of 2:2:1.
TEST(Assignment, RoundRobinOfFiveTargetsOnThreeTrainersLoadsThemTwoToTwoToOne) {
  EXPECT_EQ(loads_of(Assignment::kRoundRobin, 5), (Loads{{0, 24}, {1, 24}, {2, 12}}));
}

TEST(Assignment, PerTrainerQueuesAreFilledInTurnWhoeverMadeIt) {
  EXPECT_EQ(loads_of(Assignment::kPerTrainerQueue, 5), (Loads{{0, 20}, {1, 20}, {2, 20}}));
}

TEST(Assignment, PerTrainerQueueServesInTheOrderInWhichTicketsCome) {
  MailboxPolicy mailbox(Assignment::kPerTrainerQueue, members(2), 0);
  mailbox.open_step({0, 0, 0, 4});
  mailbox.put(ticket(2, 0));
  ASSERT_TRUE(mailbox.take(0, 0, 0)) << "though index 0 is not there yet";
  EXPECT_FALSE(mailbox.take(1, 1, 0));
}

TEST(Assignment, WithoutStealingAnIdleTrainerLeavesWhatIsAnothers) {
  for (const Assignment assignment : {Assignment::kRoundRobin, Assignment::kPerTrainerQueue}) {
    MailboxPolicy mailbox(assignment, members(2), 0);
    mailbox.open_step({0, 0, 0, 4});
    mailbox.wait(1, 1);
    mailbox.put(ticket(0, 0));
    mailbox.put(ticket(2, 2));
    EXPECT_FALSE(mailbox.hand_out(0));
    mailbox.wait(0, 0);
    const auto next = mailbox.hand_out(0);
    ASSERT_TRUE(next);
    EXPECT_EQ(next->trainer, 0);
    EXPECT_FALSE(next->work.stolen);
    EXPECT_EQ(mailbox.queues().at(0).tickets, 1);
  }
}

TEST(Assignment, WhatWaitsForALostTrainerGoesToTheOthers) {
  for (const Assignment assignment : {Assignment::kRoundRobin, Assignment::kPerTrainerQueue}) {
    MailboxPolicy mailbox(assignment, members(3), 0);
    for (int trainer : members(3)) mailbox.wait(trainer, trainer);
    mailbox.open_step({0, 0, 0, 12});
    for (int64_t index = 0; index < 12; ++index) {
      mailbox.put(ticket(index, static_cast<int>(index)));
    }
    ASSERT_TRUE(mailbox.hand_out(0));
    mailbox.trainer_lost(2);
    for (int trainer : {0, 1}) mailbox.wait(trainer, trainer);
    EXPECT_EQ(drain(mailbox), (Loads{{0, 6}, {1, 6}}));
    EXPECT_TRUE(mailbox.step_computed());
  }
}

// SpecForge c3ecb528: five samplers on three trainers whose shares are odd must end.
TEST(Assignment, EveryAssignmentEndsAStepOfSeventeen) {
  for (const Assignment assignment : {Assignment::kStealing, Assignment::kFixed,
                                      Assignment::kRoundRobin, Assignment::kPerTrainerQueue}) {
    MailboxPolicy mailbox(assignment, members(3), 0);
    for (int trainer : members(3)) mailbox.wait(trainer, trainer);
    mailbox.open_step({0, 0, 0, 17});
    for (int64_t index = 16; index >= 0; --index) {
      const int target = static_cast<int>(index % 5);
      mailbox.put(ticket(index, target, target % 3));
      drain(mailbox);
    }
    EXPECT_TRUE(mailbox.step_computed());
    EXPECT_EQ(mailbox.commit_step().count, 17);
  }
}

TEST(WaitingTrainers, OneWhoseHomeHasATicketComesBeforeOneThatWaitsLonger) {
  MailboxPolicy mailbox(Assignment::kStealing, members(3), 0);
  mailbox.open_step({0, 0, 0, 3});
  for (int trainer : members(3)) mailbox.wait(trainer, trainer);
  mailbox.put(ticket(0, 0, 2));
  EXPECT_EQ(mailbox.hand_out(0)->trainer, 2);
  mailbox.put(ticket(1, 0, 2));
  const auto next = mailbox.hand_out(0);
  EXPECT_EQ(next->trainer, 0) << "the longest";
  EXPECT_TRUE(next->work.stolen);
}

TEST(WaitingTrainers, WhoIsNoMemberWaitsNoMore) {
  MailboxPolicy mailbox(Assignment::kStealing, members(2), 0);
  mailbox.open_step({0, 0, 0, 2});
  mailbox.wait(0, 0);
  mailbox.trainer_lost(0);
  mailbox.wait(0, 0);
  mailbox.put(ticket(0, 0));
  EXPECT_FALSE(mailbox.hand_out(0));
  mailbox.change_members({0, 1}, 2);
  mailbox.wait(0, 0);
  EXPECT_TRUE(mailbox.hand_out(0));
}

/// Three trainers that take 100 ticks for a micro-batch and one, number 3, that takes 400; all of
/// them are known to.
struct FourPaces {
  FourPaces() {
    mailbox.open_step({0, 0, 0, 8});
    for (int64_t index = 0; index < 8; ++index) {
      mailbox.put(ticket(index, 0));
      const int trainer = static_cast<int>(index % 4);
      const auto work = mailbox.take(trainer, trainer, 0);
      mailbox.computed(work->ticket.id, trainer, work->lease, trainer == 3 ? 400 : 100);
    }
    mailbox.commit_step();
  }
  void open(int64_t count, int64_t put) {
    mailbox.open_step({1, 0, 8, count});
    for (int64_t index = 8; index < 8 + put; ++index) mailbox.put(ticket(index, 0));
  }
  MailboxPolicy mailbox{Assignment::kStealing, members(4), 0};
};

TEST(SlowTrainer, LeavesTheLastMicroBatchToFasterOnes) {
  FourPaces four;
  four.open(4, 4);
  four.mailbox.wait(3, 3);
  for (int trainer : members(3)) four.mailbox.wait(trainer, trainer);
  std::map<int, Work> works;
  while (const auto next = four.mailbox.hand_out(1000)) works[next->trainer] = next->work;
  EXPECT_EQ(works.size(), 3u);
  EXPECT_EQ(works.count(3), 0u) << "two of the others are done at 1200, it would be at 1400";
  four.mailbox.computed(works.at(0).ticket.id, 0, works.at(0).lease, 1100);
  four.mailbox.wait(0, 0);
  EXPECT_EQ(four.mailbox.hand_out(1100)->trainer, 0);
}

TEST(SlowTrainer, TakesItsShareOfALongStep) {
  FourPaces four;
  four.open(26, 26);
  four.mailbox.wait(3, 3);
  const auto next = four.mailbox.hand_out(1000);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->trainer, 3);
}

TEST(SlowTrainer, TakesWhatIsLeftWhenNobodyElseComputes) {
  FourPaces four;
  four.open(1, 1);
  four.mailbox.wait(3, 3);
  const auto next = four.mailbox.hand_out(1000);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->trainer, 3);
}

TEST(SlowTrainer, IsAskedAgainWhenTheFasterOnesAreGone) {
  FourPaces four;
  four.open(2, 2);
  for (int trainer : {3, 0, 1}) four.mailbox.wait(trainer, trainer);
  EXPECT_EQ(four.mailbox.hand_out(1000)->trainer, 0);
  EXPECT_EQ(four.mailbox.hand_out(1000)->trainer, 1);
  four.mailbox.change_members({3}, 1);
  EXPECT_EQ(four.mailbox.hand_out(1000)->trainer, 3);
}

/// What is gone through for each micro-batch of `steps` steps of a run on `nodes` nodes, of which
/// every fourth has a trainer of a quarter of the others' speed.
double visited_per_ticket(Assignment assignment, int nodes) {
  MailboxPolicy mailbox(assignment, members(nodes), 0);
  const int64_t per_step = 8 * nodes;
  constexpr int64_t kSteps = 6;
  std::multimap<int64_t, std::pair<int, Work>> busy;  // by when they are done
  int64_t now = 1;
  for (int trainer : members(nodes)) mailbox.wait(trainer, trainer);
  for (int64_t step = 0; step < kSteps; ++step) {
    const PlannedStep range{step, 0, step * per_step, per_step};
    mailbox.open_step(range);
    for (int64_t i = range.first; i < range.first + per_step; ++i) {
      const int target = static_cast<int>(i) % nodes;
      mailbox.put(ticket(i, target, target));
    }
    while (!mailbox.step_computed()) {
      while (const auto next = mailbox.hand_out(now)) {
        const int64_t takes = next->trainer % 4 == 3 ? 400 : 100;
        busy.emplace(now + takes + next->trainer % 7, std::pair(next->trainer, next->work));
      }
      if (busy.empty()) {
        ADD_FAILURE() << "nobody computes";
        return 0;
      }
      const auto done = busy.begin();
      now = done->first;
      const auto [trainer, work] = done->second;
      busy.erase(done);
      EXPECT_TRUE(mailbox.computed(work.ticket.id, trainer, work.lease, now));
      mailbox.wait(trainer, trainer);
      mailbox.take_changed_queues();
    }
    mailbox.commit_step();
  }
  return static_cast<double>(mailbox.visited()) / static_cast<double>(kSteps * per_step);
}

TEST(CostOfATicket, DoesNotGrowWithTheNodesExceptByTheLogarithm) {
  for (const Assignment assignment : {Assignment::kStealing, Assignment::kFixed,
                                      Assignment::kRoundRobin, Assignment::kPerTrainerQueue}) {
    SCOPED_TRACE(static_cast<int>(assignment));
    const double few = visited_per_ticket(assignment, 10);
    const double many = visited_per_ticket(assignment, 500);
    EXPECT_LT(many, 3 * few + 3) << few << " at 10 nodes";
    EXPECT_LT(many, 100);
  }
}

TEST(CostOfATicket, NodesWithoutRoomAreNotAskedAgainForEveryMicroBatch) {
  constexpr int kNodes = 200;
  int64_t next = 0;
  const auto unit = [&]() -> std::optional<WorkUnit> {
    Random random = Random::keyed(7, "unit", static_cast<uint64_t>(next));
    const uint64_t bytes = 900 + random.below(200);
    const WorkUnit made{{0, next}, next / 400, bytes, 400 * 1100};
    ++next;
    return made;
  };
  Credits credits(std::vector<uint64_t>(kNodes, 500'000));
  SamplerPolicy sampler(unit, credits, 0);
  IdleTargets idle(members(kNodes));
  for (int target : members(kNodes)) idle.add(target);
  // Every target but the first waits for room: each is given work until its node is full.
  int64_t handed_out = 0;
  std::vector<int> working;
  for (int round = 0; round < 2000; ++round) {
    working.clear();
    while (const auto got = idle.next(sampler, 0)) {
      ++handed_out;
      sampler.produced(got->second.unit.id, got->first, got->second.lease);
      working.push_back(got->first);
    }
    if (working.empty()) break;
    for (int target : working) idle.add(target);
  }
  EXPECT_GT(handed_out, kNodes) << "there is room for some on each";
  EXPECT_TRUE(working.empty());
  EXPECT_LT(idle.asked(), 3 * handed_out) << handed_out;
}

TEST(IdleTargets, ANodeWithoutRoomIsAskedAgainForASmallerMicroBatch) {
  std::vector<uint64_t> sizes = {60, 60, 30};
  size_t next = 0;
  const auto unit = [&]() -> std::optional<WorkUnit> {
    if (next == sizes.size()) return std::nullopt;
    const WorkUnit made{{0, static_cast<int64_t>(next)}, 0, sizes[next], 100};
    ++next;
    return made;
  };
  Credits credits({100, 130});
  SamplerPolicy sampler(unit, credits, 0);
  IdleTargets idle({0, 0, 1, 1});
  for (int target : {0, 1}) idle.add(target);
  EXPECT_EQ(idle.next(sampler, 0)->first, 0);
  EXPECT_FALSE(idle.next(sampler, 0)) << "60 beside 60 is too much for the first node";
  idle.add(2);
  EXPECT_EQ(idle.next(sampler, 0)->first, 2);
  EXPECT_EQ(idle.next(sampler, 0)->first, 1) << "but 30 are not";
  EXPECT_FALSE(idle.next(sampler, 0));
}

TEST(IdleTargets, OneThatIsLostGetsNothing) {
  int64_t next = 0;
  Credits credits({100});
  SamplerPolicy sampler(
      [&] {
        return std::optional(WorkUnit{{0, next++}, 0, 1, 100});
      },
      credits, 0);
  IdleTargets idle({0, 0});
  idle.add(0);
  idle.add(1);
  idle.remove(0);
  EXPECT_FALSE(idle.contains(0));
  EXPECT_EQ(idle.next(sampler, 0)->first, 1);
  EXPECT_FALSE(idle.next(sampler, 0));
}

}  // namespace
}  // namespace percheron
