#include "actors/service/placement_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace percheron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

proto::Run placed(const std::vector<std::string>& targets,
                  const std::vector<std::string>& trainers) {
  proto::Run run;
  for (const std::string& target : targets) run.mutable_placement()->add_targets(target);
  for (const std::string& trainer : trainers) run.mutable_placement()->add_trainers(trainer);
  return run;
}

proto::ScaleRun order(const std::vector<std::string>& targets,
                      const std::vector<std::string>& trainers) {
  proto::ScaleRun order;
  for (const std::string& value : targets) {
    (value.front() == '+' ? order.mutable_add_targets() : order.mutable_remove_targets())
        ->Add(value.substr(1));
  }
  for (const std::string& value : trainers) {
    (value.front() == '+' ? order.mutable_add_trainers() : order.mutable_remove_trainers())
        ->Add(value.substr(1));
  }
  return order;
}

/// "targets; trainers" after the change, or the error.
std::string changed(const proto::Run& run, const proto::ScaleRun& wanted) {
  const Result<ClusterPlacement> now = read_placement(run, "a");
  const Result<PlacementChange> change = read_change(wanted, "a", run);
  if (!now.ok()) return now.status().message();
  if (!change.ok()) return change.status().message();
  const Result<ClusterPlacement> next = change_placement(*now, *change, run);
  if (!next.ok()) return next.status().message();
  std::string text;
  for (const PlacedDevices& device : next->targets) text += device.text() + " ";
  text += ";";
  for (const PlacedDevices& device : next->trainers) text += " " + device.text();
  return text;
}

TEST(PlacementChange, DevicesComeAndGo) {
  const proto::Run run = placed({"b/cuda:0-1"}, {"cpu:0"});
  EXPECT_EQ(changed(run, order({"+cpu:3", "-b/cuda:0"}, {})), "b/cuda:1 a/cpu:3 ; a/cpu:0");
  EXPECT_EQ(changed(run, order({"-b/cuda:1"}, {"+cpu:4-5"})), "b/cuda:0 ; a/cpu:0 a/cpu:4 a/cpu:5");
  EXPECT_EQ(changed(run, order({}, {"-cpu:0", "+b/cuda:2"})), "b/cuda:0 b/cuda:1 ; b/cuda:2");
  EXPECT_EQ(changed(run, order({"+cpu:0"}, {})), "b/cuda:0 b/cuda:1 a/cpu:0 ; a/cpu:0");
}

TEST(PlacementChange, WhatIsSoAlreadyMayBeSaidAgain) {
  const proto::Run run = placed({"cpu:0", "cpu:1"}, {"cpu:2"});
  EXPECT_EQ(changed(run, order({"+cpu:1", "-cpu:7"}, {})), "a/cpu:0 a/cpu:1 ; a/cpu:2");
}

TEST(PlacementChange, WhatCanNotBeIsOneSentence) {
  proto::Run run = placed({"cpu:0", "cpu:1"}, {"cpu:2"});
  EXPECT_THAT(changed(run, order({"-cpu:0-1"}, {})), HasSubstr("no target of the run would be"));
  EXPECT_THAT(changed(run, order({}, {"-cpu:2"})), HasSubstr("no trainer of the run would be"));
  EXPECT_THAT(changed(run, order({"-cpu:2", "+cpu:4"}, {})),
              HasSubstr("a/cpu:2 is no target of the run: it has a/cpu:0, a/cpu:1"));
  EXPECT_THAT(changed(run, order({"+cpu:1", "+cpu:4"}, {})),
              HasSubstr("a/cpu:1 is a target of the run already"));
  EXPECT_THAT(changed(run, order({"+cpu:4", "-cpu:4"}, {})), HasSubstr("added and removed"));
  EXPECT_THAT(changed(run, order({"+gpu:4"}, {})), HasSubstr("placement.targets: 'gpu:4'"));
  EXPECT_THAT(changed(run, order({}, {"+b/cpu:0"})), HasSubstr("cluster.trusted_network: true"));
  run.mutable_mailbox()->set_assignment(proto::Mailbox::FIXED);
  EXPECT_THAT(changed(run, order({}, {"+cpu:4"})), HasSubstr("mailbox.assignment is fixed"));
  EXPECT_EQ(changed(run, order({"+cpu:4"}, {"+cpu:5", "-cpu:2"})),
            "a/cpu:0 a/cpu:1 a/cpu:4 ; a/cpu:5")
      << "one trainer has the same bits anywhere";
}

TEST(PlacementChange, IsWrittenWithNodes) {
  proto::Run run = placed({}, {});
  set_placement(*read_placement(run, "a"), run);
  EXPECT_THAT(run.placement().targets(), ElementsAre("a/cpu:0"));
  EXPECT_EQ(read_placement(run, "b")->targets.front().node, "a") << "also from elsewhere";
}

proto::Run in_pairs(const std::vector<std::string>& targets,
                    const std::vector<std::string>& trainers) {
  proto::Run run = placed(targets, trainers);
  run.mutable_placement()->set_tensor_parallel(2);
  return run;
}

TEST(PlacementChange, TargetsOnSeveralDevicesComeAndGoWhole) {
  const proto::Run run = in_pairs({"cuda:0-1"}, {"cuda:4"});
  EXPECT_EQ(changed(run, order({"+cuda:2", "+cuda:3"}, {})), "a/cuda:0+1 a/cuda:2+3 ; a/cuda:4");
  EXPECT_EQ(changed(run, order({"+b/cuda:2-5"}, {})),
            "a/cuda:0+1 b/cuda:2+3 b/cuda:4+5 ; a/cuda:4");
  EXPECT_EQ(changed(run, order({"-cuda:0+1", "+cuda:2+3"}, {"+cuda:0-1"})),
            "a/cuda:2+3 ; a/cuda:4 a/cuda:0 a/cuda:1")
      << "each of its devices may train";
  EXPECT_THAT(changed(run, order({"+cuda:2"}, {})),
              HasSubstr("placement.tensor_parallel is 2, and placement.targets names only a/cuda:2 "
                        "for a target: name 2 of one node"));
  EXPECT_THAT(
      changed(run, order({"+cuda:2", "+b/cuda:2"}, {})),
      HasSubstr("lets a/cuda:2 and b/cuda:2 hold one target (placement.tensor_parallel: 2), "
                "and a target's devices must be of one node"));
  EXPECT_THAT(changed(run, order({"+cuda:2", "+cpu:3"}, {})), HasSubstr("must be of one kind"));
  EXPECT_THAT(changed(run, order({"+cuda:1-2"}, {})), HasSubstr("names a/cuda:1 twice"));
  EXPECT_THAT(changed(run, order({"+cuda:2+3+4"}, {})), HasSubstr("no target on 2 devices"));
  EXPECT_THAT(changed(run, order({"-cuda:1+0", "+cuda:2+3"}, {})),
              HasSubstr("a/cuda:1+0 is no target of the run: it has a/cuda:0+1"));
  EXPECT_THAT(changed(run, order({}, {"+cuda:2+3"})), HasSubstr("and one is wanted"));
  EXPECT_THAT(changed(run, order({"-cuda:0-1"}, {})), HasSubstr("no target of the run would be"));
}

TEST(PlacementChange, TargetsOnSeveralDevicesAreWrittenDeviceByDevice) {
  proto::Run run = in_pairs({"cuda:0-1", "b/cuda:3+2"}, {"cuda:1"});
  const ClusterPlacement placement = *read_placement(run, "a");
  set_placement(placement, run);
  EXPECT_THAT(run.placement().targets(),
              ElementsAre("a/cuda:0", "a/cuda:1", "b/cuda:3", "b/cuda:2"));
  EXPECT_EQ(read_placement(run, "c")->targets, placement.targets);
  EXPECT_EQ(placement.workers().size(), 2U) << "a trainer beside a part of a target";
  EXPECT_EQ(placement.workers().at(placement.targets[0]).text(), "target 0, trainer 0");
}

class WorkerPlacesTest : public testing::Test {
 protected:
  static PlacedDevices cpu(int index) { return {"a", {DeviceId{DeviceKind::kCpu, index}}}; }
  static PlacedDevices both(int index) {
    return {"a", {DeviceId{DeviceKind::kCpu, index}, DeviceId{DeviceKind::kCpu, index + 1}}};
  }
  ClusterPlacement placement(const std::vector<std::string>& targets,
                             const std::vector<std::string>& trainers) const {
    proto::Run run = placed(targets, trainers);
    run.mutable_placement()->set_tensor_parallel(devices_per_target_);
    return *read_placement(run, "a");
  }
  void start(const std::vector<std::string>& targets, const std::vector<std::string>& trainers) {
    places_.emplace(placement(targets, trainers));
  }
  Result<WorkerPlaces::Plan> plan(const std::vector<std::string>& targets,
                                  const std::vector<std::string>& trainers) {
    return places_->plan(placement(targets, trainers));
  }
  std::optional<WorkerPlaces> places_;
  int devices_per_target_ = 1;
};

TEST_F(WorkerPlacesTest, NumbersOnlyGrow) {
  start({"cpu:0"}, {"cpu:1"});
  const auto first = plan({"cpu:0", "cpu:2"}, {"cpu:1"});
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(first->fresh.size(), 1u);
  EXPECT_THAT(first->fresh.at(cpu(2)).targets, ElementsAre(1));
  EXPECT_TRUE(first->retired.empty());
  places_->add(first->fresh);
  const auto second = plan({"cpu:3", "cpu:2"}, {"cpu:1"});
  ASSERT_TRUE(second.ok());
  EXPECT_THAT(second->fresh.at(cpu(3)).targets, ElementsAre(2));
  EXPECT_THAT(second->retired.at(cpu(0)).targets, ElementsAre(0));
  EXPECT_THAT(second->ended, UnorderedElementsAre(cpu(0)));
  places_->add(second->fresh);
  places_->retire(second->retired);
  const auto third = plan({"cpu:3", "cpu:2", "cpu:0"}, {"cpu:1"});
  EXPECT_THAT(third->fresh.at(cpu(0)).targets, ElementsAre(3));
}

TEST_F(WorkerPlacesTest, ADeviceThatChangesItsRoleBeginsAnew) {
  start({"cpu:0", "cpu:1"}, {"cpu:2"});
  const auto moved = plan({"cpu:0"}, {"cpu:2", "cpu:1"});
  ASSERT_TRUE(moved.ok()) << moved.status().message();
  EXPECT_TRUE(moved->fresh.empty());
  EXPECT_THAT(moved->retired.at(cpu(1)).targets, ElementsAre(1));
  EXPECT_THAT(moved->ended, UnorderedElementsAre(cpu(1)));
  EXPECT_EQ(moved->moved.at(cpu(1)).text(), "trainer 1");
  // A second role is a new process, with new numbers for both.
  const auto both = plan({"cpu:0", "cpu:1"}, {"cpu:2", "cpu:1"});
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_THAT(both->retired.at(cpu(1)).targets, ElementsAre(1));
  EXPECT_EQ(both->moved.at(cpu(1)).text(), "target 2, trainer 1");
}

TEST_F(WorkerPlacesTest, AProcessStaysForTheRoleThatIsLeft) {
  start({"cpu:0", "cpu:1"}, {"cpu:0"});
  const auto plan = this->plan({"cpu:1"}, {"cpu:0"});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->retired.at(cpu(0)).text(), "target 0");
  EXPECT_TRUE(plan->ended.empty());
  EXPECT_TRUE(plan->moved.empty());
}

TEST_F(WorkerPlacesTest, SomebodyStaysWhileDevicesChangeRoles) {
  start({"cpu:0"}, {"cpu:1"});
  EXPECT_THAT(plan({"cpu:1"}, {"cpu:0"}).status().message(),
              HasSubstr("no target would be there while a/cpu:0 changes its role"));
  EXPECT_THAT(plan({"cpu:0", "cpu:1"}, {"cpu:1"}).status().message(),
              HasSubstr("no trainer would be there while a/cpu:1 changes its role"));
  const auto with_help = plan({"cpu:1", "cpu:2"}, {"cpu:0", "cpu:3"});
  ASSERT_TRUE(with_help.ok()) << with_help.status().message();
  EXPECT_EQ(with_help->fresh.at(cpu(2)).text(), "target 1");
  EXPECT_EQ(with_help->moved.at(cpu(1)).text(), "target 2");
}

TEST_F(WorkerPlacesTest, DevicesOfATargetBecomeTrainersAndBack) {
  devices_per_target_ = 2;
  start({"cpu:0-3"}, {"cpu:4"});
  const auto apart = plan({"cpu:0-1"}, {"cpu:4", "cpu:2", "cpu:3"});
  ASSERT_TRUE(apart.ok()) << apart.status().message();
  EXPECT_THAT(apart->ended, UnorderedElementsAre(both(2)));
  EXPECT_TRUE(apart->fresh.empty());
  EXPECT_EQ(apart->moved.at(cpu(2)).text(), "trainer 1");
  EXPECT_EQ(apart->moved.at(cpu(3)).text(), "trainer 2");
  places_->retire(apart->retired);
  places_->add(apart->moved);
  const auto together = plan({"cpu:0-3"}, {"cpu:4"});
  ASSERT_TRUE(together.ok()) << together.status().message();
  EXPECT_THAT(together->ended, UnorderedElementsAre(cpu(2), cpu(3)));
  EXPECT_EQ(together->moved.at(both(2)).text(), "target 2");
  // The device that is left of it is another process.
  const auto one_left = plan({"cpu:0-1"}, {"cpu:4", "cpu:3"});
  EXPECT_THAT(one_left->ended, UnorderedElementsAre(cpu(2)));
  EXPECT_TRUE(one_left->moved.empty());
}

TEST_F(WorkerPlacesTest, ATrainerBesideAPartOfATargetIsInItsProcess) {
  devices_per_target_ = 2;
  start({"cpu:0-3"}, {"cpu:4"});
  const auto joined = plan({"cpu:0-3"}, {"cpu:4", "cpu:1"});
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  EXPECT_THAT(joined->ended, UnorderedElementsAre(both(0)));
  EXPECT_EQ(joined->moved.at(both(0)).text(), "target 2, trainer 1");
  places_->retire(joined->retired);
  places_->add(joined->moved);
  EXPECT_EQ(places_->place_of(WorkerKind::kTrainer, 1), both(0));
  EXPECT_EQ(places_->placement().trainers.back(), cpu(1));
  // Without the target the trainer needs a process of its device alone.
  const auto alone = plan({"cpu:2-3"}, {"cpu:4", "cpu:1"});
  EXPECT_EQ(alone->retired.at(both(0)).text(), "target 2, trainer 1");
  EXPECT_EQ(alone->moved.at(cpu(1)).text(), "trainer 2");
}

TEST_F(WorkerPlacesTest, NodesKeepTheirNumbers) {
  start({"cpu:0"}, {"b/cpu:0"});
  places_->add(plan({"cpu:0", "c/cpu:0"}, {"b/cpu:0"})->fresh);
  EXPECT_THAT(places_->nodes(), ElementsAre("a", "b", "c"));
  const auto away = plan({"c/cpu:0"}, {"b/cpu:0"});
  places_->retire(away->retired);
  EXPECT_EQ(places_->node_number("a"), 0);
  EXPECT_EQ(places_->node_number("c"), 2);
  EXPECT_EQ(places_->node_number("d"), -1);
}

}  // namespace
}  // namespace percheron
