#include "actors/policy/target_flow.h"

#include <gtest/gtest.h>

#include "actors/policy/asking_targets.h"

namespace percheron {
namespace {

TEST(TargetFlow, ANextPassBeginsWhenTheOneBeforeIsInTheStreamAndNotMoreThanTwoAreUnderWay) {
  TargetFlow flow;
  EXPECT_TRUE(flow.ask());
  EXPECT_FALSE(flow.ask()) << "once";
  flow.given();
  EXPECT_TRUE(flow.begin());
  EXPECT_FALSE(flow.ask()) << "its pass is not in the stream yet";
  flow.begun();
  EXPECT_TRUE(flow.ask());
  flow.given();
  EXPECT_TRUE(flow.begin());
  flow.begun();
  EXPECT_FALSE(flow.ask()) << "two are under way";
  flow.given();  // It may be given more than it asked for, as after a loss that was none.
  EXPECT_FALSE(flow.begin());
  flow.ended();
  EXPECT_FALSE(flow.ask()) << "one waits";
  EXPECT_TRUE(flow.begin());
  EXPECT_EQ(flow.in_flight(), 2);
  flow.begun();
  flow.ended();
  EXPECT_TRUE(flow.ask());
}

// Of overlapping passes each is counted for what it adds: the sum is the time that all take.
TEST(PassTimer, PassesThatOverlapAreCountedOnce) {
  PassTimer timer;
  EXPECT_EQ(timer.add(0, 100, 130), 100) << "the pass is the longer stage";
  EXPECT_EQ(timer.add(5, 200, 230), 100) << "it was put in while the one before ran";
  EXPECT_EQ(timer.add(105, 300, 330), 100);
  EXPECT_EQ(timer.add(500, 600, 630), 100) << "the device had nothing to do for a while";
  EXPECT_EQ(timer.add(600, 650, 850), 200) << "what follows is the longer stage";
}

// A second micro-batch for one target is none for another that has nothing.
TEST(AskingTargets, WhoHasNothingToDoComesBeforeWhoWorksAhead) {
  int64_t next = 0;
  Credits credits({2});  // bytes, of one each
  SamplerPolicy sampler(
      [&] {
        return std::optional(WorkUnit{{0, next++}, 0, 1, 100});
      },
      credits, 0);
  AskingTargets asking({0, 0, 0});
  asking.add(0, false);
  EXPECT_EQ(asking.next(sampler, 0)->first, 0);
  asking.add(0, true);
  asking.add(2, false);
  EXPECT_EQ(asking.next(sampler, 0)->first, 2);
  EXPECT_FALSE(asking.next(sampler, 0)) << "there is no room";
  EXPECT_TRUE(asking.contains(0));
  asking.add(1, true);
  asking.has_nothing(1);
  sampler.freed({0, 0});
  asking.room_changed();
  EXPECT_EQ(asking.next(sampler, 0)->first, 1) << "it has nothing any more";
  EXPECT_EQ(asking.all(), (std::set<int>{0}));
  asking.remove(0);
  EXPECT_TRUE(asking.all().empty());
}

TEST(LeaseTable, CountsWhatAnOwnerHoldsHoweverItsLeasesEnd) {
  LeaseTable leases(10);
  const int64_t first = leases.grant({0, 0}, 7, 0);
  leases.grant({0, 1}, 7, 5);
  leases.grant({0, 2}, 8, 5);
  EXPECT_EQ(leases.held_by(7), 2u);
  EXPECT_FALSE(leases.settle({0, 0}, 7, first + 1));
  EXPECT_TRUE(leases.settle({0, 0}, 7, first));
  EXPECT_EQ(leases.held_by(7), 1u);
  EXPECT_EQ(leases.drop_owner(8).size(), 1u);
  EXPECT_EQ(leases.held_by(8), 0u);
  EXPECT_EQ(leases.expire(15).size(), 1u);
  EXPECT_EQ(leases.held_by(7), 0u);
  leases.grant({0, 3}, 7, 0);
  leases.clear();
  EXPECT_EQ(leases.held_by(7), 0u);
}

}  // namespace
}  // namespace percheron
