// What a run's report tells of its actors.

#include "actors/service/activity_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "actors/service/run_reporter.h"
#include "base/clock.h"
#include "data/transport/frame_channel.h"

namespace percheron {
namespace {

proto::WorkerState worker(const std::string& device, int target, int trainer) {
  proto::WorkerState state;
  state.set_node("alpha");
  state.set_device(device);
  state.set_state("ready");
  for (const auto& [role, number] : {std::pair(proto::ActorMessage::TARGET, target),
                                     std::pair(proto::ActorMessage::TRAINER, trainer)}) {
    if (number < 0) continue;
    state.add_actors()->set_role(role);
    state.mutable_actors()->rbegin()->set_number(number);
  }
  return state;
}

TEST(ActivityReport, EachActorOfAWorkerGetsItsOwnTimes) {
  RunActivitySnapshot seen;
  seen.targets.resize(2);
  seen.trainers.resize(1);
  seen.targets[1].now = Occupation::kRoom;
  seen.targets[1].seconds[Occupation::kCompute] = 3;
  seen.targets[1].seconds[Occupation::kRoom] = 5;
  seen.targets[1].seconds[Occupation::kIdle] = 100;
  seen.trainers[0].now = Occupation::kReduce;
  seen.trainers[0].seconds[Occupation::kCompute] = 1;
  seen.trainers[0].seconds[Occupation::kReduce] = 0.5;
  seen.trainers[0].seconds[Occupation::kFeatures] = 4;
  seen.trainers[0].samples = 17;
  proto::RunReport report;
  *report.add_workers() = worker("cuda:0", 1, 0);
  *report.add_workers() = worker("cuda:1", -1, 1);  // one that the run does not know yet
  add_activity(seen, report);
  const proto::ActorState& target = report.workers(0).actors(0);
  EXPECT_EQ(target.occupation(), "room");
  EXPECT_EQ(target.busy_seconds(), 3);
  EXPECT_EQ(target.wait_seconds(), 5);
  const proto::ActorState& trainer = report.workers(0).actors(1);
  EXPECT_EQ(trainer.occupation(), "reduce");
  EXPECT_EQ(trainer.busy_seconds(), 1.5);
  EXPECT_EQ(trainer.wait_seconds(), 4);
  EXPECT_EQ(trainer.samples(), 17);
  EXPECT_FALSE(report.workers(1).actors(0).has_occupation());
}

TEST(ActivityReport, QueuesAreThoseOfNow) {
  RunActivitySnapshot seen;
  seen.store = {.reserved_bytes = 1, .published_bytes = 2, .lingering_bytes = 4, .bytes_max = 100};
  seen.mailbox.homes = {{0, {3, 30}}, {1, {0, 0}}};
  seen.mailbox.queued_later = 5;
  seen.steals = {{{0, 1}, 2}, {{1, 0}, 9}};
  seen.lease_expirations = {3, 4};
  proto::RunReport report;
  report.set_feature_bytes(77);
  add_activity(seen, report);
  add_activity(seen, report);  // Nothing is there twice.
  EXPECT_EQ(report.feature_bytes(), 7u);
  EXPECT_EQ(report.feature_bytes_max(), 100u);
  ASSERT_EQ(report.homes_size(), 2);
  EXPECT_EQ(report.homes(0).tickets(), 3);
  EXPECT_EQ(report.queued_later(), 5);
  ASSERT_EQ(report.steal_pairs_size(), 2);
  EXPECT_EQ(report.steal_pairs(0).count(), 9);
  EXPECT_EQ(report.steal_pairs(0).thief(), 1);
  EXPECT_EQ(report.lease_expirations(), 7);
}

// A report goes with others into one frame between nodes.
TEST(ActivityReport, AThousandWorkersFitManyTimesIntoAFrame) {
  constexpr int kWorkers = 1000;
  RunActivitySnapshot seen;
  seen.targets.resize(kWorkers);
  seen.trainers.resize(kWorkers);
  proto::RunReport report;
  for (int i = 0; i < kWorkers; ++i) {
    proto::WorkerState state = worker("cuda:" + std::to_string(i % 8), i, i);
    state.set_node("a-rather-long-name-of-node-" + std::to_string(i / 8));
    state.set_role("target " + std::to_string(i) + ", trainer " + std::to_string(i));
    *report.add_workers() = state;
    for (WorkerActivity* activity : {&seen.targets[i], &seen.trainers[i]}) {
      activity->now = Occupation::kEvaluation;
      activity->seconds[Occupation::kCompute] = 1e6 / 3;
      activity->samples = int64_t{1} << 40;
    }
    seen.mailbox.homes[i] = {i, uint64_t{1} << 40};
    for (int victim = 0; victim < 100; ++victim) seen.steals[{i, victim}] = i + victim;
  }
  add_activity(seen, report);
  EXPECT_EQ(report.steal_pairs_size(), kReportedSteals);
  EXPECT_EQ(report.steal_pairs(0).count(), kWorkers - 1 + 99);
  EXPECT_LT(report.ByteSizeLong(), FrameChannel::kFrameBytesMax / 4);
}

TEST(RunReporter, TellsActivityWhileThereAreWorkersAndNotAfterwards) {
  std::vector<proto::RunReport> sent;
  RunReporter reporter(system_clock(),
                       [&](const proto::RunReport& report) { sent.push_back(report); });
  const auto activity = std::make_shared<RunActivity>(system_clock());
  activity->begin({{"cpu:0"}, {"cpu:1"}});
  reporter.set_workers([] { return std::vector{worker("cpu:0", 0, -1), worker("cpu:1", -1, 0)}; });
  reporter.set_activity(activity);
  reporter.set_state(proto::RunReport::RUNNING);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].workers_size(), 2);
  EXPECT_TRUE(sent[0].workers(1).actors(0).has_occupation());
  EXPECT_FALSE(sent[0].bottleneck().empty());
  reporter.tick();
  EXPECT_EQ(sent.size(), 1u);  // It was sent a moment ago.
  reporter.set_workers(nullptr);
  reporter.set_state(proto::RunReport::DONE);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[1].workers_size(), 0);
  EXPECT_TRUE(sent[1].bottleneck().empty());
  EXPECT_FALSE(sent[1].has_activity_seconds());
}

}  // namespace
}  // namespace percheron
