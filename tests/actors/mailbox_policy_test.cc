#include "actors/policy/mailbox_policy.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/random.h"

namespace percheron {
namespace {

Ticket ticket(int64_t index, int home, int64_t epoch = 0) {
  Ticket result;
  result.id = {epoch, index};
  result.node = home;
  result.home = home;
  result.bytes = 1;
  return result;
}

std::vector<int> members(int count) {
  std::vector<int> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST(Mailbox, TrainerTakesTheOldestTicketOfItsOwnHome) {
  MailboxPolicy mailbox(Assignment::kStealing, members(2), 0);
  mailbox.open_step({0, 0, 0, 4});
  for (int64_t index : {3, 1, 2, 0}) mailbox.put(ticket(index, index % 2));
  const auto first = mailbox.take(1, 1, 0);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->ticket.id.index, 1);
  EXPECT_FALSE(first->stolen);
}

TEST(Mailbox, IdleTrainerTakesFromTheFullestOtherHome) {
  MailboxPolicy mailbox(Assignment::kStealing, members(3), 0);
  mailbox.open_step({0, 0, 0, 6});
  mailbox.put(ticket(0, 0));
  for (int64_t index : {1, 2, 3}) mailbox.put(ticket(index, 1));
  const auto work = mailbox.take(2, 2, 0);
  ASSERT_TRUE(work);
  EXPECT_EQ(work->ticket.id.index, 1);
  EXPECT_TRUE(work->stolen);
  EXPECT_EQ(mailbox.steals(), 1);
}

TEST(Mailbox, TellsWhatWaitsAtEachHomeAndWhatTheStepLacks) {
  MailboxPolicy mailbox(Assignment::kStealing, members(2), 0);
  mailbox.open_step({0, 0, 0, 2});
  EXPECT_TRUE(mailbox.tickets_missing());
  for (int64_t index : {0, 2, 3}) mailbox.put(ticket(index, index % 2));
  EXPECT_TRUE(mailbox.tickets_missing());
  EXPECT_EQ(mailbox.queued_later(), 2u);
  mailbox.put(ticket(1, 1));
  EXPECT_FALSE(mailbox.tickets_missing());
  EXPECT_EQ(mailbox.queues().at(0).tickets, 2);
  EXPECT_EQ(mailbox.queues().at(1).bytes, 2u);
  ASSERT_TRUE(mailbox.take(1, 1, 0));
  EXPECT_EQ(mailbox.queues().at(1).tickets, 1);
  EXPECT_EQ(mailbox.queues().at(1).bytes, 1u);
  ASSERT_EQ(mailbox.node_lost(1).size(), 1u) << "the other one is leased";
  EXPECT_EQ(mailbox.queues().at(1).tickets, 0);
  EXPECT_EQ(mailbox.queues().at(1).bytes, 0u);
  EXPECT_EQ(mailbox.queued_later(), 1u);
  mailbox.restart();
  EXPECT_TRUE(mailbox.queues().empty());
}

// Trainers begin to sum while the last micro-batches compute.
TEST(Mailbox, TellsOnceThatTheLastTicketOfTheStepIsHandedOut) {
  MailboxPolicy mailbox(Assignment::kStealing, members(2), 0);
  mailbox.open_step({4, 0, 0, 2});
  mailbox.put(ticket(0, 0));
  ASSERT_TRUE(mailbox.take(0, 0, 0));
  EXPECT_FALSE(mailbox.take_last_handed_out()) << "one is not made yet";
  mailbox.put(ticket(1, 0));
  mailbox.put(ticket(2, 0));
  EXPECT_FALSE(mailbox.take_last_handed_out()) << "one is queued";
  const auto last = mailbox.take(1, 1, 0);
  const auto told = mailbox.take_last_handed_out();
  ASSERT_TRUE(told) << "whatever is queued for the next step";
  EXPECT_EQ(told->step, 4);
  EXPECT_EQ(told->group, 0);
  EXPECT_FALSE(mailbox.take_last_handed_out());
  mailbox.computed({0, 0}, 0, 1);
  mailbox.computed({0, 1}, 1, last->lease);
  EXPECT_FALSE(mailbox.take_last_handed_out());
  mailbox.commit_step();
  mailbox.open_step({5, 0, 2, 1});
  ASSERT_TRUE(mailbox.take(0, 0, 0));
  const auto next = mailbox.take_last_handed_out();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->step, 5);
  EXPECT_EQ(next->group, 0) << "the same sum together";
}

// What was begun when it did not hold is begun again by another group, however short the while.
TEST(Mailbox, TellsOfAnotherGroupWhenMoreTicketsComeAfterTheLast) {
  MailboxPolicy mailbox(Assignment::kStealing, members(2), 0);
  mailbox.open_step({0, 0, 0, 1});
  mailbox.put(ticket(0, 0));
  const auto work = mailbox.take(0, 0, 0);
  ASSERT_EQ(mailbox.take_last_handed_out()->group, 0);
  ASSERT_TRUE(mailbox.unreadable({0, 0}, 0, work->lease));
  EXPECT_FALSE(mailbox.take_last_handed_out());
  mailbox.put(ticket(0, 0));
  ASSERT_TRUE(mailbox.take(1, 1, 0));
  EXPECT_EQ(mailbox.take_last_handed_out()->group, 1);
  mailbox.trainer_lost(0);
  EXPECT_FALSE(mailbox.take_last_handed_out());
  ASSERT_TRUE(mailbox.take(1, 1, 0));
  EXPECT_EQ(mailbox.take_last_handed_out()->group, 2);
}

TEST(Mailbox, TicketsOfLaterStepsWait) {
  MailboxPolicy mailbox(Assignment::kStealing, members(2), 0);
  mailbox.open_step({0, 0, 0, 1});
  mailbox.put(ticket(1, 0));
  EXPECT_FALSE(mailbox.take(0, 0, 0));
  mailbox.put(ticket(0, 1));
  const auto work = mailbox.take(0, 0, 0);
  ASSERT_TRUE(work);
  EXPECT_TRUE(mailbox.computed({0, 0}, 0, work->lease));
  ASSERT_TRUE(mailbox.step_computed());
  EXPECT_EQ(mailbox.commit_step().count, 1);
  mailbox.open_step({1, 0, 1, 1});
  EXPECT_EQ(mailbox.take(0, 0, 0)->ticket.id.index, 1);
}

TEST(Mailbox, FixedAssignmentIsIndexModuloTrainersInOrder) {
  MailboxPolicy mailbox(Assignment::kFixed, members(2), 0);
  mailbox.open_step({0, 0, 0, 4});
  mailbox.put(ticket(2, 0));
  EXPECT_FALSE(mailbox.take(0, 0, 0)) << "index 0 comes before index 2";
  EXPECT_FALSE(mailbox.take(1, 1, 0));
  mailbox.put(ticket(0, 1));
  const auto first = mailbox.take(0, 0, 0);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->ticket.id.index, 0);
  EXPECT_TRUE(mailbox.computed(first->ticket.id, 0, first->lease));
  EXPECT_EQ(mailbox.take(0, 0, 0)->ticket.id.index, 2);
}

TEST(Mailbox, OneTrainerIsServedInIndexOrderThoughItMaySteal) {
  MailboxPolicy mailbox(Assignment::kStealing, members(1), 0);
  mailbox.open_step({0, 0, 0, 2});
  mailbox.put(ticket(1, 0));
  EXPECT_FALSE(mailbox.take(0, 0, 0));
}

TEST(Mailbox, DuplicateTicketsAreCountedAndRefused) {
  MailboxPolicy mailbox(Assignment::kStealing, members(1), 0);
  mailbox.open_step({0, 0, 0, 1});
  EXPECT_EQ(mailbox.put(ticket(0, 0)), MailboxPolicy::Put::kQueued);
  EXPECT_EQ(mailbox.put(ticket(0, 1)), MailboxPolicy::Put::kDuplicate);
  const auto work = mailbox.take(0, 0, 0);
  EXPECT_EQ(mailbox.put(ticket(0, 1)), MailboxPolicy::Put::kDuplicate);
  ASSERT_TRUE(mailbox.computed(work->ticket.id, 0, work->lease));
  mailbox.commit_step();
  EXPECT_EQ(mailbox.put(ticket(0, 1)), MailboxPolicy::Put::kDuplicate);
  EXPECT_EQ(mailbox.duplicates(), 3);
  EXPECT_EQ(mailbox.queued(), 0u);
}

TEST(Mailbox, LossOfATrainerQueuesTheWholeOpenStepAgainAndRefusesOldLeases) {
  MailboxPolicy mailbox(Assignment::kStealing, members(2), 0);
  mailbox.open_step({0, 0, 0, 3});
  for (int64_t index : {0, 1, 2}) mailbox.put(ticket(index, 0));
  const auto done = mailbox.take(0, 0, 0);
  const auto held = mailbox.take(1, 1, 0);
  const auto survivor = mailbox.take(0, 0, 0);
  ASSERT_TRUE(mailbox.computed(done->ticket.id, 0, done->lease));
  EXPECT_TRUE(mailbox.trainer_lost(1).empty()) << "features are still there";
  EXPECT_EQ(mailbox.membership(), 1);
  EXPECT_EQ(mailbox.queued(), 3u);
  EXPECT_FALSE(mailbox.computed(held->ticket.id, 1, held->lease));
  EXPECT_FALSE(mailbox.computed(survivor->ticket.id, 0, survivor->lease))
      << "its sums were dropped with the others'";
  EXPECT_EQ(mailbox.stale(), 2);
  EXPECT_FALSE(mailbox.take(1, 1, 0)) << "no member any more";
}

TEST(Mailbox, LostNodeIsProducedAgainAndWhatWasReadOnlyIfATrainerDies) {
  MailboxPolicy mailbox(Assignment::kStealing, members(2), 0);
  mailbox.open_step({0, 0, 0, 2});
  mailbox.put(ticket(0, 7));
  mailbox.put(ticket(1, 7));
  const auto read = mailbox.take(0, 0, 0);
  EXPECT_EQ(mailbox.node_lost(7), (std::vector<MicroBatchId>{{0, 1}}));
  EXPECT_TRUE(mailbox.computed(read->ticket.id, 0, read->lease));
  EXPECT_EQ(mailbox.trainer_lost(1), (std::vector<MicroBatchId>{{0, 0}}));
  EXPECT_EQ(mailbox.put(ticket(0, 0)), MailboxPolicy::Put::kQueued);
  EXPECT_EQ(mailbox.put(ticket(1, 0)), MailboxPolicy::Put::kQueued);
}

TEST(Mailbox, OverdueTrainersAreNamed) {
  MailboxPolicy mailbox(Assignment::kStealing, members(2), 100);
  mailbox.open_step({0, 0, 0, 1});
  mailbox.put(ticket(0, 0));
  mailbox.take(1, 1, 50);
  EXPECT_TRUE(mailbox.overdue_trainers(149).empty());
  EXPECT_EQ(mailbox.overdue_trainers(150), std::vector<int>{1});
}

TEST(Mailbox, NewMembersBeginTheOpenStepWithFreshLeasesAndAPairMayStealAgain) {
  MailboxPolicy mailbox(Assignment::kStealing, members(1), 0);
  mailbox.open_step({0, 0, 0, 3});
  for (int64_t index : {0, 1, 2}) mailbox.put(ticket(index, 0));
  const auto held = mailbox.take(0, 0, 0);
  EXPECT_TRUE(mailbox.change_members({0, 1}, 5).empty());
  EXPECT_EQ(mailbox.membership(), 5);
  EXPECT_EQ(mailbox.queued_again(), 1);
  EXPECT_FALSE(mailbox.computed(held->ticket.id, 0, held->lease));
  EXPECT_EQ(mailbox.take(1, 1, 0)->ticket.id.index, 0) << "stolen, not index modulo trainers";
}

TEST(Mailbox, UnreadableFeaturesAreProducedAgain) {
  MailboxPolicy mailbox(Assignment::kStealing, members(2), 0);
  mailbox.open_step({0, 0, 0, 1});
  mailbox.put(ticket(0, 3));
  const auto work = mailbox.take(1, 1, 0);
  EXPECT_FALSE(mailbox.unreadable(work->ticket.id, 0, work->lease)) << "not its lease";
  EXPECT_TRUE(mailbox.unreadable(work->ticket.id, 1, work->lease));
  EXPECT_FALSE(mailbox.take(1, 1, 0));
  EXPECT_EQ(mailbox.put(ticket(0, 2)), MailboxPolicy::Put::kQueued);
  EXPECT_TRUE(mailbox.take(1, 1, 0));
}

TEST(Mailbox, RestartForgetsEverythingButFences) {
  MailboxPolicy mailbox(Assignment::kStealing, members(1), 0);
  mailbox.open_step({4, 0, 4, 1});
  mailbox.put(ticket(4, 0));
  const auto held = mailbox.take(0, 0, 0);
  mailbox.restart();
  mailbox.open_step({3, 0, 3, 1});
  EXPECT_EQ(mailbox.put(ticket(4, 0)), MailboxPolicy::Put::kQueued);
  EXPECT_EQ(mailbox.put(ticket(3, 0)), MailboxPolicy::Put::kQueued);
  EXPECT_FALSE(mailbox.computed(held->ticket.id, 0, held->lease));
  EXPECT_EQ(mailbox.take(0, 0, 0)->ticket.id.index, 3);
}

// Random arrivals, thefts and deaths: invariant 1, as seen from outside.
TEST(Mailbox, EveryMicroBatchCountsOnceWhateverDies) {
  const uint64_t seed = 20250117;
  RecordProperty("seed", std::to_string(seed));
  for (uint64_t round = 0; round < 300; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
    Random random = Random::keyed(seed, "mailbox", round);
    const int trainers = 1 + static_cast<int>(random.below(4));
    const auto assignment = random.below(2) ? Assignment::kStealing : Assignment::kFixed;
    MailboxPolicy mailbox(assignment, members(trainers), 0);
    const StepPlan plan(1 + static_cast<int64_t>(random.below(5)),
                        {1 + static_cast<int64_t>(random.below(12)), 7}, 0);
    for (int64_t step = 0; step < plan.steps(); ++step) {
      const PlannedStep range = plan.at(step);
      mailbox.open_step(range);
      std::vector<int64_t> to_come(range.count);
      std::iota(to_come.begin(), to_come.end(), range.first);
      shuffle(std::span(to_come), random);
      std::map<int64_t, int> counted;  // sums that the members hold now
      std::map<int, std::vector<Work>> working;
      for (int guard = 0; !mailbox.step_computed(); ++guard) {
        ASSERT_LT(guard, 10000) << "no progress";
        const uint64_t what = random.below(100);
        if (what < 40 && !to_come.empty()) {
          mailbox.put(ticket(to_come.back(), static_cast<int>(random.below(4)), range.epoch));
          to_come.pop_back();
        } else if (what < 70) {
          const int trainer = static_cast<int>(random.below(trainers));
          if (auto work = mailbox.take(trainer, trainer, 0)) working[trainer].push_back(*work);
        } else if (what < 98) {
          const int trainer = static_cast<int>(random.below(trainers));
          if (working[trainer].empty()) continue;
          const Work work = working[trainer].back();
          working[trainer].pop_back();
          if (mailbox.computed(work.ticket.id, trainer, work.lease)) {
            ++counted[work.ticket.id.index];
          }
        } else if (what == 98 && mailbox.members().size() > 1) {
          EXPECT_TRUE(mailbox.trainer_lost(mailbox.members()[0]).empty());
          counted.clear();
        } else if (what == 99) {
          const int node = static_cast<int>(random.below(4));
          for (MicroBatchId id : mailbox.node_lost(node)) to_come.push_back(id.index);
          // What was read stays counted; its features are made anew for a later death.
          mailbox.trainer_lost(-1);
          if (mailbox.members().size() > 1) {
            for (MicroBatchId id : mailbox.trainer_lost(mailbox.members()[0])) {
              to_come.push_back(id.index);
            }
            counted.clear();
          }
        }
      }
      EXPECT_EQ(static_cast<int64_t>(counted.size()), range.count);
      for (const auto& [index, times] : counted) EXPECT_EQ(times, 1) << index;
      mailbox.commit_step();
    }
  }
}

}  // namespace
}  // namespace percheron
