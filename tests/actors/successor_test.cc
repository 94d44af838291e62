#include "actors/node/successor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "actors/service/run_owner.h"

namespace percheron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SuccessorTest : public testing::Test {
 protected:
  SuccessorTest() {
    run_.set_id("run");
    run_.set_node("a");
    run_.mutable_report()->set_state(proto::RunReport::RUNNING);
    for (const char* target : {"cpu:0", "b/cpu:0", "c/cpu:0"}) {
      run_.mutable_config()->mutable_placement()->add_targets(target);
    }
    for (const char* trainer : {"b/cpu:1", "c/cpu:1"}) {
      run_.mutable_config()->mutable_placement()->add_trainers(trainer);
    }
    run_.mutable_config()->mutable_cluster()->set_trusted_network(true);
  }
  /// Who goes on with it, or why nobody does.
  std::string successor(const std::set<std::string>& there) const {
    const Succession next = succession_of(run_, there);
    EXPECT_NE(next.node.empty(), next.missing.empty());
    return next.node + next.missing;
  }
  /// Ticks every tenth of a second.
  void pass(double seconds) {
    for (const double until = now_ + seconds; now_ < until; now_ += 0.1) watch_.tick(now_);
  }
  proto::RunRecord run_;
  SuccessorWatch watch_;
  double now_ = 1000;
};

TEST_F(SuccessorTest, IsTheLowestNodeOfTheRunThatIsThere) {
  EXPECT_EQ(successor({"b", "c", "d"}), "b");
  EXPECT_EQ(successor({"c", "d"}), "c");
  EXPECT_EQ(successor({"d"}), "no target is left without it") << "the run has nothing there";
}

TEST_F(SuccessorTest, ARunOfTheSameNameThatIsLaterGetsAnotherOne) {
  run_.set_submitted(20);
  proto::RunRecord other = run_;
  EXPECT_FALSE(is_later_twin(run_, other)) << "the same run";
  other.set_submitted(10);
  EXPECT_TRUE(is_later_twin(run_, other));
  EXPECT_FALSE(is_later_twin(other, run_)) << "one of them keeps its name";
  other.mutable_report()->set_state(proto::RunReport::DONE);
  EXPECT_FALSE(is_later_twin(run_, other)) << "nothing of it is in the way";
}

TEST_F(SuccessorTest, NeedsATargetAndATrainer) {
  run_.mutable_config()->mutable_placement()->clear_trainers();
  run_.mutable_config()->mutable_placement()->add_trainers("cpu:1");
  EXPECT_EQ(successor({"b", "c"}), "no trainer is left without it");
}

TEST_F(SuccessorTest, NeedsEveryDeviceWhereMicroBatchesAreAssignedForGood) {
  run_.mutable_config()->mutable_mailbox()->set_assignment(proto::Mailbox::FIXED);
  EXPECT_EQ(successor({"b", "c"}), "mailbox.assignment: fixed needs its devices");
  run_.mutable_config()->mutable_placement()->set_targets(0, "b/cpu:2");
  EXPECT_EQ(successor({"b", "c"}), "b") << "only the supervisor was lost";
}

TEST_F(SuccessorTest, ComesAfterItsTimeOrNever) {
  pass(100);
  EXPECT_FALSE(watch_.is_due(run_, 29, now_));
  EXPECT_TRUE(watch_.is_due(run_, 30, now_));
  proto::Cluster& cluster = *run_.mutable_config()->mutable_cluster();
  cluster.set_successor_seconds(2);
  EXPECT_TRUE(watch_.is_due(run_, 2.5, now_));
  cluster.set_successor_seconds(0);
  EXPECT_FALSE(watch_.is_due(run_, 1e6, now_));
}

TEST_F(SuccessorTest, RunsThatRestOrAreOverStay) {
  pass(100);
  run_.set_released(true);
  EXPECT_FALSE(watch_.is_due(run_, 60, now_));
  run_.clear_released();
  run_.mutable_report()->set_state(proto::RunReport::DONE);
  EXPECT_FALSE(watch_.is_due(run_, 60, now_));
}

TEST_F(SuccessorTest, ANodeThatWasStoppedItselfGivesEverybodyTheFullTimeAnew) {
  pass(100);
  now_ += 3600;  // stopped: everybody was silent to it
  pass(29.5);
  EXPECT_FALSE(watch_.is_due(run_, 3629, now_));
  pass(1);
  EXPECT_TRUE(watch_.is_due(run_, 3630, now_)) << "it is lost indeed";
}

TEST_F(SuccessorTest, ANodeThatJustStartedWaitsAsLong) {
  EXPECT_FALSE(watch_.is_due(run_, 60, now_));
  pass(29);
  EXPECT_FALSE(watch_.is_due(run_, 60, now_));
}

TEST_F(SuccessorTest, TheRunKeepsItsDevicesUnderTheirNames) {
  const proto::RunRecord taken = taken_over(run_, "b", "its node is lost");
  EXPECT_EQ(taken.node(), "b");
  EXPECT_EQ(taken.generation(), 1);
  EXPECT_TRUE(has_moved(run_, taken));
  EXPECT_FALSE(has_moved(taken, run_));
  EXPECT_EQ(taken.report().state(), proto::RunReport::QUEUED);
  EXPECT_THAT(taken.config().placement().targets(), ElementsAre("a/cpu:0", "b/cpu:0", "c/cpu:0"));
}

TEST(RunOwner, ALaterGenerationKeepsTheEarlierOneOut) {
  FileSystem& files = system_files();
  const std::string output = testing::TempDir() + "run_owner/output";
  ASSERT_TRUE(files.remove_all(output).ok());
  EXPECT_TRUE(check_run_owner(files, output, {0, "a"}).ok()) << "nobody has it";
  EXPECT_TRUE(*own_run(files, output, {0, "a"}));
  EXPECT_FALSE(*own_run(files, output, {0, "a"})) << "it had it already";
  EXPECT_TRUE(*own_run(files, output, {2, "b"}));
  EXPECT_EQ((*read_run_owner(files, output))->node, "b");
  EXPECT_TRUE(check_run_owner(files, output, {2, "b"}).ok());
  EXPECT_THAT(check_run_owner(files, output, {1, "a"}).message(), HasSubstr("on node b now"));
  EXPECT_EQ(own_run(files, output, {0, "a"}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(own_run(files, output, {2, "c"}).status().code(), StatusCode::kFailedPrecondition)
      << "two that think that they are to have it: the first has it";
  ASSERT_TRUE(write_text_atomically(files, output + "/.owner", "b\n").ok());
  EXPECT_EQ(check_run_owner(files, output, {1, "a"}).code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace percheron
