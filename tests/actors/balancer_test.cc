#include "actors/service/balancer.h"
#include "tests/base/fake_clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

namespace percheron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A run of two targets and two trainers on one node; each does one micro-batch of ten samples a
// second, and waits for the rest of it.
class BalancerTest : public testing::Test {
 protected:
  void SetUp() override {
    run.mutable_placement()->set_balance_settle_seconds(5);
    placement.targets = {device(0), device(1)};
    placement.trainers = {device(2), device(3)};
    activity->begin({{"cpu:0", "cpu:1"}, {"cpu:2", "cpu:3"}});
    RunPhase phase;
    phase.step = RunPhase::Step::kComputing;
    activity->phase(phase);
  }
  static PlacedDevices device(int index) { return {"alpha", {DeviceId{DeviceKind::kCpu, index}}}; }

  void run_for(int seconds, double target_seconds, double trainer_seconds) {
    Balancer balancer("demo", run, activity,
                      {[this] { return placement; },
                       [this](const proto::ScaleRun& order) { orders.push_back(order); },
                       [this](const std::string& text) { said.push_back(text); }},
                      clock);
    for (int second = 0; second < seconds; ++second) {
      for (int i = 0; i < 2; ++i) {
        activity->target_leased(i, 64);
        activity->trainer_leased(i, std::nullopt);
      }
      clock.advance(1);
      for (int i = 0; i < 2; ++i) {
        activity->target_settled(i, 100, 10, target_seconds, false);
        activity->trainer_settled(i, 100, 10, trainer_seconds);
      }
      activity->tick({});
      balancer.tick();
    }
  }

  FakeClock clock;
  std::shared_ptr<RunActivity> activity = std::make_shared<RunActivity>(clock);
  proto::Run run;
  ClusterPlacement placement;
  std::vector<proto::ScaleRun> orders;
  std::vector<std::string> said;
};

TEST_F(BalancerTest, ATargetOfWhichThereAreTooManyBecomesATrainer) {
  run.mutable_placement()->set_auto_balance(true);
  run_for(12, 0.3, 1);
  ASSERT_EQ(orders.size(), 1U) << "and then it waits until that has settled";
  EXPECT_THAT(orders[0].remove_targets(), ElementsAre("alpha/cpu:1"));
  EXPECT_THAT(orders[0].add_trainers(), ElementsAre("alpha/cpu:1"));
  EXPECT_EQ(orders[0].request(), 0U);
  EXPECT_THAT(said, ElementsAre(HasSubstr("alpha/cpu:1 becomes a trainer")));
}

TEST_F(BalancerTest, WithoutAutoBalanceItIsSaidOnce) {
  run_for(30, 1, 0.3);
  EXPECT_TRUE(orders.empty());
  EXPECT_THAT(said, ElementsAre(HasSubstr("percheron scale demo --targets +alpha/cpu:3 "
                                          "--trainers -alpha/cpu:3")));
}

TEST_F(BalancerTest, ABalancedRunIsLeftAlone) {
  run.mutable_placement()->set_auto_balance(true);
  run_for(60, 1, 1);
  EXPECT_TRUE(orders.empty());
  EXPECT_TRUE(said.empty());
}

TEST_F(BalancerTest, NobodyTakesTheRoleOfAWorkerThatIsLost) {
  run.mutable_placement()->set_auto_balance(true);
  activity->lost(WorkerKind::kTarget, 1);
  run_for(30, 0.9, 0.3);
  EXPECT_TRUE(orders.empty());
  activity->restarted(WorkerKind::kTarget, 1);
  run_for(30, 0.9, 0.3);
  EXPECT_FALSE(orders.empty());
}

TEST_F(BalancerTest, WhatCanNotBeIsSaidWithItsReason) {
  run.mutable_placement()->set_auto_balance(true);
  run.mutable_mailbox()->set_assignment(proto::Mailbox::FIXED);
  run_for(30, 0.3, 1);
  EXPECT_TRUE(orders.empty());
  EXPECT_THAT(said, ElementsAre(HasSubstr("but mailbox.assignment is fixed")));
}

// Two devices hold each target together: they change their role together.
TEST_F(BalancerTest, ATargetOnTwoDevicesBecomesTwoTrainersAndTwoTrainersATarget) {
  run.mutable_placement()->set_tensor_parallel(2);
  run.mutable_placement()->set_auto_balance(true);
  const auto both = [](int index) {
    PlacedDevices placed = device(index);
    placed.devices.push_back({DeviceKind::kCpu, index + 1});
    return placed;
  };
  placement.targets = {both(0), both(2)};
  placement.trainers = {device(4), device(5)};
  run_for(12, 0.1, 1);
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_THAT(orders[0].remove_targets(), ElementsAre("alpha/cpu:2", "alpha/cpu:3"));
  EXPECT_THAT(orders[0].add_trainers(), ElementsAre("alpha/cpu:2", "alpha/cpu:3"));
  EXPECT_THAT(said, ElementsAre(HasSubstr("alpha/cpu:2, alpha/cpu:3 become trainers")));
  // A trainer for each of the other two would be none at all.
  orders.clear();
  run_for(30, 1, 0.1);
  EXPECT_TRUE(orders.empty());
}

TEST(PlacementDevices, HalfOfThemBeginAsTargets) {
  proto::Run run;
  run.mutable_placement()->add_devices("cpu:0-2");
  run.mutable_placement()->add_devices("beta/cpu:0");
  run.mutable_cluster()->set_trusted_network(true);
  Result<ClusterPlacement> placement = read_placement(run, "alpha");
  ASSERT_TRUE(placement.ok()) << placement.status().message();
  EXPECT_EQ(placement->targets.size(), 2U);
  ASSERT_EQ(placement->trainers.size(), 2U);
  EXPECT_EQ(placement->trainers[1].text(), "beta/cpu:0");
}

TEST(PlacementDevices, WholeTargetsOnSeveralDevicesAndATrainerAtLeast) {
  proto::Run run;
  run.mutable_placement()->set_tensor_parallel(2);
  run.mutable_placement()->add_devices("cpu:0-5");
  Result<ClusterPlacement> placement = read_placement(run, "alpha");
  ASSERT_TRUE(placement.ok()) << placement.status().message();
  ASSERT_EQ(placement->targets.size(), 2U) << "half of six, rounded up to whole targets";
  EXPECT_EQ(placement->targets[1].text(), "alpha/cpu:2+3");
  EXPECT_EQ(placement->trainers.size(), 2U);
  run.mutable_placement()->set_devices(0, "cpu:0-1");
  EXPECT_THAT(read_placement(run, "alpha").status().message(),
              HasSubstr("placement.devices names 2 and placement.tensor_parallel is 2, which "
                        "leaves none for a trainer: name at least 3"));
}

}  // namespace
}  // namespace percheron
