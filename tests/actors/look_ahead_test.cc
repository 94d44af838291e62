// Leases that trainers hold ahead of what they compute: who may, how many, and what becomes of
// them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "actors/policy/mailbox_policy.h"
#include "actors/policy/trainer_leases.h"
#include "base/random.h"

namespace percheron {
namespace {

using testing::ElementsAre;

constexpr uint64_t kMany = 1000;

std::vector<int> members(int count) {
  std::vector<int> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

Ticket ticket(int64_t index, int home = 0, uint64_t bytes = 1) {
  Ticket result;
  result.id = {0, index};
  result.target = result.node = result.home = home;
  result.bytes = bytes;
  return result;
}

/// What each trainer was given, in order.
using Given = std::map<int, std::vector<Work>>;

std::vector<int64_t> indices(const std::vector<Work>& works) {
  std::vector<int64_t> list;
  for (const Work& work : works) list.push_back(work.ticket.id.index);
  return list;
}

/// A mailbox whose trainers have all asked for work.
struct Mail {
  Mail(Assignment assignment, int trainers, uint64_t prefetch)
      : mailbox(assignment, members(trainers), 0, prefetch) {
    for (int trainer : members(trainers)) mailbox.wait(trainer, trainer);
  }
  /// A step of `count` that are all there, spread over `homes`.
  void open(int64_t first, int64_t count, int homes) {
    mailbox.open_step({step++, 0, first, count});
    for (int64_t i = first; i < first + count; ++i) {
      mailbox.put(ticket(i, static_cast<int>(i % homes)));
    }
  }
  Given pump(int64_t now = 1) {
    Given given;
    while (const auto next = mailbox.hand_out(now)) {
      given[next->trainer].push_back(next->work);
      held[next->trainer].push_back(next->work);
    }
    return given;
  }
  /// The trainer computes the first that it holds.
  void compute(int trainer, int64_t now) {
    const Work work = held[trainer].front();
    held[trainer].erase(held[trainer].begin());
    EXPECT_TRUE(mailbox.computed(work.ticket.id, trainer, work.lease, now));
  }
  /// A step in which each trainer takes `takes` for each of two, so that all paces are known.
  void learn_paces(const std::vector<int64_t>& takes) {
    const auto count = static_cast<int64_t>(takes.size());
    mailbox.open_step({step++, 0, 0, 2 * count});
    for (int64_t i = 0; i < 2 * count; ++i) {
      const int trainer = static_cast<int>(i % count);
      mailbox.put(ticket(i, trainer));
      const auto work = mailbox.take(trainer, trainer, 1);
      ASSERT_TRUE(work);
      mailbox.computed(work->ticket.id, trainer, work->lease, 1 + takes[trainer]);
    }
    mailbox.commit_step();
  }

  int64_t step = 0;
  MailboxPolicy mailbox;
  Given held;
};

TEST(LookAhead, WithoutBytesForItATrainerHoldsOnlyWhatItComputes) {
  Mail mail(Assignment::kStealing, 1, 0);
  mail.open(0, 4, 1);
  EXPECT_EQ(mail.pump().at(0).size(), 1u);
  mail.mailbox.wait(0, 0);
  EXPECT_TRUE(mail.pump().empty());
}

TEST(LookAhead, AsManyAreHeldAsTheBytesHaveRoomForAndOneAtLeast) {
  for (const auto& [bytes, prefetch, expected] :
       std::vector<std::tuple<uint64_t, uint64_t, size_t>>{
           {10, 1, 2}, {10, 19, 2}, {10, 20, 3}, {10, 35, 4}, {1, kMany, 9}}) {
    SCOPED_TRACE(testing::Message() << bytes << " of " << prefetch);
    Mail mail(Assignment::kStealing, 1, prefetch);
    mail.mailbox.open_step({0, 0, 0, 12});
    for (int64_t i = 0; i < 12; ++i) mail.mailbox.put(ticket(i, 0, bytes));
    const Given given = mail.pump();
    EXPECT_EQ(given.at(0).size(), expected);
    EXPECT_FALSE(given.at(0)[0].ahead);
    for (size_t i = 1; i < expected; ++i) EXPECT_TRUE(given.at(0)[i].ahead);
    mail.compute(0, 2);
    EXPECT_EQ(mail.pump(2).at(0).size(), 1u) << "room for one more";
  }
}

TEST(LookAhead, ASingleTrainerAndFixedOnesKeepTheOrderOfIndex) {
  Mail single(Assignment::kStealing, 1, kMany);
  single.mailbox.open_step({0, 0, 0, 4});
  single.mailbox.put(ticket(1));
  EXPECT_TRUE(single.pump().empty());
  single.mailbox.put(ticket(0));
  EXPECT_THAT(indices(single.pump().at(0)), ElementsAre(0, 1));
  single.mailbox.put(ticket(3));
  EXPECT_TRUE(single.pump().empty()) << "2 is not there";
  single.mailbox.put(ticket(2));
  EXPECT_THAT(indices(single.pump().at(0)), ElementsAre(2, 3));

  Mail fixed(Assignment::kFixed, 2, 2);
  fixed.open(0, 8, 2);
  const Given given = fixed.pump();
  EXPECT_THAT(indices(given.at(0)), ElementsAre(0, 2, 4));
  EXPECT_THAT(indices(given.at(1)), ElementsAre(1, 3, 5));
}

TEST(LookAhead, TicketsOfLaterStepsAreNobodysYet) {
  Mail mail(Assignment::kStealing, 1, kMany);
  mail.open(0, 2, 1);
  mail.mailbox.put(ticket(2));
  EXPECT_THAT(indices(mail.pump().at(0)), ElementsAre(0, 1));
}

TEST(LookAhead, NobodyDoesWhileThePaceOfOneIsUnknown) {
  Mail mail(Assignment::kStealing, 2, kMany);
  mail.open(0, 16, 2);
  const Given given = mail.pump();
  EXPECT_EQ(given.at(0).size(), 1u);
  EXPECT_EQ(given.at(1).size(), 1u);
}

TEST(LookAhead, AnIdleTrainerComesBeforeOneThatLooksAhead) {
  Mail mail(Assignment::kStealing, 2, kMany);
  mail.learn_paces({100, 100});
  mail.mailbox.open_step({mail.step, 0, 4, 16});
  mail.mailbox.put(ticket(4, 0));
  mail.mailbox.wait(0, 0);
  EXPECT_EQ(mail.mailbox.hand_out(300)->trainer, 0);
  mail.mailbox.wait(1, 1);
  mail.mailbox.put(ticket(5, 0));
  const auto next = mail.mailbox.hand_out(300);
  EXPECT_EQ(next->trainer, 1) << "though it is of the other's home";
  EXPECT_FALSE(next->work.ahead);
}

TEST(LookAhead, NoneIsTakenFromAHomeWhoseTrainerWouldMissIt) {
  Mail mail(Assignment::kStealing, 2, kMany);
  mail.learn_paces({100, 100});
  mail.mailbox.open_step({mail.step, 0, 4, 24});
  for (int64_t i : {4, 5, 6}) mail.mailbox.put(ticket(i, 1));
  for (int trainer : {1, 0}) mail.mailbox.wait(trainer, trainer);
  const Given given = mail.pump(300);
  EXPECT_THAT(indices(given.at(1)), ElementsAre(4, 6)) << "one for now and one ahead";
  EXPECT_THAT(indices(given.at(0)), ElementsAre(5)) << "none ahead";
  mail.mailbox.put(ticket(7, 1));
  EXPECT_TRUE(mail.pump(300).empty()) << "it is trainer 1's, once it has computed one";
  mail.mailbox.put(ticket(8, 1));
  EXPECT_THAT(indices(mail.pump(300).at(0)), ElementsAre(7)) << "one of two is left";
}

TEST(LookAhead, OfWhatLiesAtHomeOneIsHeldAndOfWhatIsFarAsMuchAsFits) {
  Mail mail(Assignment::kStealing, 2, 3);
  mail.learn_paces({100, 100});
  mail.open(4, 60, 1);  // all at home 0
  for (int trainer : {0, 1}) mail.mailbox.wait(trainer, trainer);
  const Given given = mail.pump(300);
  EXPECT_EQ(given.at(0).size(), 2u);
  EXPECT_EQ(given.at(1).size(), 4u);
}

// Whoever holds more than it computes when the last tickets are handed out holds up the others.
TEST(LookAhead, TheLastTicketsAreForWhoeverIsFreeFirst) {
  Mail mail(Assignment::kStealing, 3, kMany);
  mail.learn_paces({100, 100, 100});
  mail.open(6, 9, 3);
  for (int trainer : members(3)) mail.mailbox.wait(trainer, trainer);
  const Given given = mail.pump(300);
  size_t handed_out = 0;
  for (const auto& [trainer, works] : given) handed_out += works.size();
  EXPECT_EQ(handed_out, 6u) << "three compute, three are ahead, and three are left";
  mail.compute(0, 400);
  EXPECT_TRUE(mail.pump(400).empty()) << "it has one ahead";
  mail.compute(0, 500);
  EXPECT_EQ(mail.pump(500).at(0).size(), 1u);
}

TEST(LookAhead, ASlowTrainerHoldsNoneThatItWouldEndTooLate) {
  Mail mail(Assignment::kStealing, 2, kMany);
  mail.learn_paces({100, 400});
  mail.open(4, 8, 2);
  for (int trainer : {0, 1}) mail.mailbox.wait(trainer, trainer);
  const Given given = mail.pump(1000);
  EXPECT_EQ(given.at(1).size(), 1u) << "eight take 700 together, two of its own 800";
  EXPECT_GT(given.at(0).size(), 1u);
}

TEST(LookAhead, WhatALostTrainerHeldIsQueuedAgainWhole) {
  for (const Assignment assignment : {Assignment::kStealing, Assignment::kFixed,
                                      Assignment::kRoundRobin, Assignment::kPerTrainerQueue}) {
    Mail mail(assignment, 2, kMany);
    mail.learn_paces({100, 100});
    mail.open(4, 12, 2);
    for (int trainer : {0, 1}) mail.mailbox.wait(trainer, trainer);
    const Given given = mail.pump(300);
    ASSERT_GT(given.at(0).size(), 1u);
    ASSERT_GT(given.at(1).size(), 1u);
    EXPECT_TRUE(mail.mailbox.trainer_lost(0).empty());
    EXPECT_EQ(mail.mailbox.queued(), 12u);
    EXPECT_EQ(mail.mailbox.leased(), 0u);
    EXPECT_FALSE(mail.mailbox.holds_any(1));
    const Work& stale = given.at(1)[1];
    EXPECT_FALSE(mail.mailbox.computed(stale.ticket.id, 1, stale.lease, 400));
    mail.held.clear();
    mail.mailbox.wait(1, 1);
    for (int64_t now = 500; !mail.mailbox.step_computed(); now += 100) {
      mail.pump(now);
      ASSERT_FALSE(mail.held[1].empty());
      mail.compute(1, now + 100);
    }
  }
}

TEST(LookAhead, AnUnreadableOneComesBeforeThoseThatAreHeldAlready) {
  Mail mail(Assignment::kFixed, 1, 2);
  mail.open(0, 5, 1);
  const std::vector<Work> works = mail.pump().at(0);
  ASSERT_THAT(indices(works), ElementsAre(0, 1, 2));
  EXPECT_TRUE(mail.mailbox.unreadable(works[0].ticket.id, 0, works[0].lease, 2));
  EXPECT_TRUE(mail.pump(2).empty()) << "nothing behind it is given before it is there again";
  mail.mailbox.put(ticket(0));
  const Given again = mail.pump(3);
  EXPECT_THAT(indices(again.at(0)), ElementsAre(0)) << "beyond the bytes, for it is waited for";
}

TEST(LookAhead, OneThatHoldsSomethingDoesNotWaitInLine) {
  Mail mail(Assignment::kStealing, 2, 0);
  mail.open(0, 4, 2);
  mail.mailbox.wait(0, 0);
  const Given given = mail.pump();
  EXPECT_EQ(given.at(0).size(), 1u);
  mail.mailbox.wait(0, 0);  // said before it heard of the ticket
  EXPECT_TRUE(mail.pump().empty());
}

// Random arrivals and trainers of several speeds, all assignments: each micro-batch is computed
// once, nobody waits while another holds more than it computes near the end, and limits hold.
TEST(LookAhead, NobodyIsStarvedAndEveryStepEndsWhateverTheOrder) {
  const uint64_t seed = 20261201;
  RecordProperty("seed", std::to_string(seed));
  int64_t held_ahead = 0;
  for (uint64_t round = 0; round < 400; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
    Random random = Random::keyed(seed, "ahead", round);
    const auto assignment = static_cast<Assignment>(random.below(4));
    const int trainers = 1 + static_cast<int>(random.below(5));
    const uint64_t prefetch = random.below(6);
    Mail mail(assignment, trainers, prefetch);
    std::vector<int64_t> pace;
    for (int i = 0; i < trainers; ++i) pace.push_back(20 + static_cast<int64_t>(random.below(200)));
    int64_t now = 1, next = 0;
    std::map<int64_t, int> done_at;  // by time
    std::set<int> computing;
    for (int step = 0; step < 4; ++step) {
      const int64_t count = 1 + static_cast<int64_t>(random.below(30));
      mail.mailbox.open_step({step, 0, next, count});
      std::vector<int64_t> to_come(static_cast<size_t>(count));
      std::iota(to_come.begin(), to_come.end(), next);
      shuffle(std::span(to_come), random);
      next += count;
      int64_t computed = 0;
      for (int guard = 0; !mail.mailbox.step_computed(); ++guard) {
        ASSERT_LT(guard, 10000) << "no progress";
        if (!to_come.empty() && random.below(3) != 0) {
          mail.mailbox.put(ticket(to_come.back(), static_cast<int>(random.below(4))));
          to_come.pop_back();
        } else if (!done_at.empty()) {
          const auto [time, trainer] = *done_at.begin();
          done_at.erase(done_at.begin());
          now = std::max(now, time);
          computing.erase(trainer);
          mail.compute(trainer, now);
          ++computed;
        }
        const bool steals = assignment == Assignment::kStealing && trainers > 1;
        int64_t left = count - computed - static_cast<int64_t>(mail.mailbox.leased());
        for (; const auto given = mail.mailbox.hand_out(now); --left) {
          mail.held[given->trainer].push_back(given->work);
          held_ahead += given->work.ahead ? 1 : 0;
          if (!steals || !given->work.ahead) continue;
          EXPECT_GT(left, trainers) << "near the end nobody looks ahead";
        }
        for (auto& [trainer, works] : mail.held) {
          EXPECT_LE(works.size(), 1 + prefetch);
          if (works.empty() || !computing.insert(trainer).second) continue;
          int64_t end = now + pace[static_cast<size_t>(trainer)];
          while (!done_at.emplace(end, trainer).second) ++end;
        }
        // Whoever is idle although a ticket is there was held back by its pace, and others compute.
        if (steals && computing.empty()) {
          EXPECT_EQ(mail.mailbox.queued(), 0u);
        }
      }
      EXPECT_EQ(mail.mailbox.commit_step().count, count);
    }
  }
  EXPECT_GT(held_ahead, 1000) << "it must happen";
}

// --- as the trainer sees it ----------------------------------------------------------------------

TrainerLease lease(int64_t index, int64_t token, int64_t membership = 0, bool in_order = false) {
  return {{0, index}, token, membership, in_order};
}

TEST(TrainerLeases, AreComputedOneByOneInTheOrderInWhichTheyWereGiven) {
  TrainerLeases leases;
  EXPECT_TRUE(leases.idle());
  EXPECT_TRUE(leases.add(lease(5, 1)));
  EXPECT_TRUE(leases.add(lease(3, 2)));
  EXPECT_FALSE(leases.idle());
  EXPECT_TRUE(leases.fetched(2));
  EXPECT_FALSE(leases.begin()) << "the first is still fetched";
  EXPECT_TRUE(leases.fetched(1));
  EXPECT_EQ(leases.begin()->id.index, 5);
  EXPECT_FALSE(leases.begin()) << "one at a time";
  EXPECT_EQ(leases.after_current()->id.index, 3);
  leases.done();
  EXPECT_EQ(leases.begin()->id.index, 3);
  leases.done();
  EXPECT_TRUE(leases.idle());
}

TEST(TrainerLeases, OfAnOlderMembershipAreDroppedButForTheOneThatIsComputed) {
  TrainerLeases leases;
  leases.add(lease(0, 1));
  leases.add(lease(1, 2));
  leases.fetched(1);
  ASSERT_TRUE(leases.begin());
  leases.regroup(1);
  EXPECT_FALSE(leases.idle()) << "its device is at one";
  EXPECT_FALSE(leases.fetched(2));
  EXPECT_FALSE(leases.unreadable(2));
  EXPECT_FALSE(leases.add(lease(1, 2))) << "it comes late";
  leases.done();
  EXPECT_TRUE(leases.idle());
  EXPECT_TRUE(leases.add(lease(1, 3, 2))) << "a later membership is known by its first lease";
  EXPECT_FALSE(leases.add(lease(0, 4, 1)));
}

TEST(TrainerLeases, NothingIsAddedBeforeWhatCouldNotBeReadWhereTheOrderCounts) {
  TrainerLeases leases;
  for (int64_t i = 0; i < 3; ++i) leases.add(lease(i, 10 + i, 0, true));
  leases.fetched(11);
  leases.fetched(12);
  EXPECT_TRUE(leases.unreadable(10));
  EXPECT_FALSE(leases.begin());
  EXPECT_FALSE(leases.idle()) << "what it holds it will compute";
  leases.add(lease(0, 13, 0, true));
  EXPECT_FALSE(leases.begin());
  leases.fetched(13);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(leases.begin()->id.index, i);
    leases.done();
  }

  for (int64_t i = 0; i < 2; ++i) leases.add(lease(i, 20 + i));
  leases.fetched(21);
  leases.unreadable(20);
  EXPECT_EQ(leases.begin()->id.index, 1) << "else it goes on with the next";
}

}  // namespace
}  // namespace percheron
