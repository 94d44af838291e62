// What `percheron top` makes of a run's reports.

#include "tools/top_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace percheron {
namespace {

using ::testing::ElementsAre;

constexpr auto kTarget = proto::ActorMessage::TARGET;
constexpr auto kTrainer = proto::ActorMessage::TRAINER;

proto::ActorState& add_actor(proto::WorkerState& worker, proto::ActorMessage::Role role,
                             int number) {
  proto::ActorState& actor = *worker.add_actors();
  actor.set_role(role);
  actor.set_number(number);
  actor.set_occupation("compute");
  return actor;
}

/// A run of ten targets and a trainer, after `seconds` of which each was busy half of the time.
proto::RunRecord run_after(double seconds) {
  proto::RunRecord run;
  run.set_id("run");
  proto::RunReport& report = *run.mutable_report();
  report.set_state(proto::RunReport::RUNNING);
  report.set_phase("training");
  report.set_activity_seconds(seconds);
  proto::WorkerState& trainer = *report.add_workers();
  trainer.set_node("beta");
  trainer.set_device("cuda:0");
  trainer.set_state("ready");
  add_actor(trainer, kTrainer, 0);
  for (int i = 0; i < 10; ++i) {
    proto::WorkerState& target = *report.add_workers();
    target.set_node("alpha");
    target.set_device("cuda:" + std::to_string(i));
    target.set_state("ready");
    add_actor(target, kTarget, 9 - i);
  }
  for (proto::WorkerState& worker : *report.mutable_workers()) {
    proto::ActorState& actor = *worker.mutable_actors(0);
    actor.set_busy_seconds(seconds / 2);
    actor.set_wait_seconds(seconds / 4);
    actor.set_samples(static_cast<int64_t>(seconds * 8));
  }
  return run;
}

TopSnapshot snapshot_of(const proto::RunRecord& run, const TopHistory& history, double now = 0,
                        const proto::ControlReply& reply = {}) {
  return top_snapshot(run, history, reply.nodes(), now);
}

TEST(TopSnapshot, TargetsComeFirstAndByTheirNumbers) {
  const proto::RunRecord run = run_after(10);
  TopHistory history;
  history.add(run.report(), 0);
  const TopSnapshot top = snapshot_of(run, history);
  ASSERT_EQ(top.workers.size(), 11u);
  EXPECT_EQ(top.workers[0].name, "target 0");
  EXPECT_EQ(top.workers[0].device, "cuda:9");
  EXPECT_EQ(top.workers[2].name, "target 2");
  EXPECT_EQ(top.workers[10].name, "trainer 0");
  EXPECT_EQ(top.workers[10].state, "compute");
}

TEST(TopSnapshot, SharesAreThoseBetweenReports) {
  const proto::RunRecord before = run_after(100);
  proto::RunRecord run = run_after(100);
  run.mutable_report()->set_activity_seconds(102);
  proto::ActorState& actor = *run.mutable_report()->mutable_workers(0)->mutable_actors(0);
  actor.set_busy_seconds(actor.busy_seconds() + 1.5);
  actor.set_wait_seconds(actor.wait_seconds() + 0.5);
  actor.set_samples(actor.samples() + 10);
  TopHistory history;
  history.add(before.report(), 0);
  EXPECT_DOUBLE_EQ(snapshot_of(before, history).workers[10].busy_share, 0.5);
  history.add(run.report(), 2);
  const TopWorker trainer = snapshot_of(run, history).workers[10];
  EXPECT_DOUBLE_EQ(trainer.busy_share, 0.75);
  EXPECT_DOUBLE_EQ(trainer.wait_share, 0.25);
  EXPECT_DOUBLE_EQ(trainer.samples_per_second, 5);
  EXPECT_DOUBLE_EQ(snapshot_of(run, history).workers[0].busy_share, 0);
}

TEST(TopSnapshot, AReportThatIsReadTwiceChangesNoShares) {
  TopHistory history;
  history.add(run_after(10).report(), 0);
  history.add(run_after(12).report(), 1);
  for (int i = 2; i < 5; ++i) history.add(run_after(12).report(), i);
  ASSERT_NE(history.before(), nullptr);
  EXPECT_EQ(history.before()->activity_seconds(), 10);
}

TEST(TopHistory, LooksBackAsFarAsItsWindowAndNotFurther) {
  TopHistory history;
  for (int i = 0; i <= 100; ++i) history.add(run_after(i).report(), i);
  ASSERT_NE(history.before(), nullptr);
  EXPECT_EQ(history.before()->activity_seconds(), 100 - TopHistory::kWindowSeconds);
}

// A supervisor that was started again counts from 0.
TEST(TopHistory, AnotherProcessIsComparedWithNothing) {
  TopHistory history;
  history.add(run_after(100).report(), 0);
  history.add(run_after(3).report(), 1);
  EXPECT_EQ(history.before(), nullptr);
  const TopSnapshot top = snapshot_of(run_after(3), history);
  EXPECT_DOUBLE_EQ(top.workers[0].busy_share, 0.5);
}

TEST(TopHistory, SilenceIsToldOfRunsThatHaveASupervisor) {
  TopHistory history;
  proto::RunRecord run = run_after(10);
  history.add(run.report(), 100);
  history.add(run.report(), 104);
  EXPECT_EQ(history.silent_seconds(104), 0);
  EXPECT_EQ(history.silent_seconds(110), 10);
  run.mutable_report()->set_state(proto::RunReport::DONE);
  history.add(run.report(), 111);
  EXPECT_EQ(history.silent_seconds(200), 0);
}

TEST(TopSnapshot, AWorkersDeviceIsThatOfItsNode) {
  const proto::RunRecord run = run_after(10);
  proto::ControlReply reply;
  for (const char* name : {"alpha", "beta"}) {
    proto::NodeRecord& node = *reply.add_nodes();
    node.set_name(name);
    proto::DeviceRecord& device = *node.add_devices();
    device.set_device("cuda:0");
    device.mutable_facts()->set_power_watts(node.name() == "beta" ? 640 : 100);
  }
  TopHistory history;
  history.add(run.report(), 0);
  const TopSnapshot top = snapshot_of(run, history, 0, reply);
  EXPECT_EQ(top.workers[10].power_watts, 640);
  EXPECT_LT(top.workers[10].utilization, 0);
  EXPECT_EQ(top.workers[9].power_watts, 100);
  EXPECT_LT(top.workers[0].power_watts, 0);
}

TEST(TopSnapshot, AWorkerThatIsNotReadyShowsWhy) {
  proto::RunRecord run = run_after(10);
  run.mutable_report()->mutable_workers(0)->set_state("lost");
  run.mutable_report()->mutable_workers(0)->set_restarts(2);
  run.mutable_report()->set_phase("evaluating");
  TopHistory history;
  history.add(run.report(), 0);
  const TopSnapshot top = snapshot_of(run, history);
  EXPECT_EQ(top.workers[10].state, "lost");
  EXPECT_EQ(top.worker_restarts, 2);
  EXPECT_EQ(top.state, "running (evaluating)");
}

TEST(TopSnapshot, ARunThatIsOverHasNoWorkers) {
  proto::RunRecord run = run_after(10);
  run.mutable_report()->set_state(proto::RunReport::FAILED);
  run.mutable_report()->set_message("no space");
  TopHistory history;
  history.add(run.report(), 0);
  const TopSnapshot top = snapshot_of(run, history);
  EXPECT_THAT(top.workers, ElementsAre());
  EXPECT_FALSE(top.works);
  EXPECT_EQ(top.message, "no space");
}

}  // namespace
}  // namespace percheron
