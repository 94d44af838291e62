#include "actors/service/scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"

namespace percheron {
namespace {

using ::testing::ElementsAre;

/// What happened, in order, on whatever thread.
class Course {
 public:
  void add(const std::string& what) {
    const std::lock_guard lock(mutex_);
    events_.push_back(what);
    changed_.notify_all();
  }
  /// Waits until `what` has happened.
  void wait_for(const std::string& what) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return std::ranges::find(events_, what) != events_.end(); });
  }
  std::vector<std::string> events() {
    const std::lock_guard lock(mutex_);
    return events_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
};

PlacedDevices cpu(int index) { return {"alpha", {DeviceId{DeviceKind::kCpu, index}}}; }

// Takes one of two targets out of a run that has told nothing of its workers yet.
void take_one_out() {
  Course course;
  RunControl control;
  control.attach([&course](const RunControl::Message& message) {
    if (std::holds_alternative<RunControl::Retired>(message)) course.add("to leave");
  });
  ClusterPlacement placement;
  placement.targets = {cpu(0), cpu(2)};
  placement.trainers = {cpu(1)};
  WorkerSet workers(placement, {},
                    {[](const PlacedDevices&, const proto::Frame&) {},
                     [&course](const std::string&, const proto::Frame& frame) {
                       if (frame.has_end_worker()) course.add("end " + frame.end_worker().device());
                     }},
                    control, system_clock());
  Scaler scaler(placement, {}, "alpha", workers, control,
                {[&course](const proto::RunOrderReply& reply) { course.add(reply.text()); },
                 [](const proto::RunPlacement&) {}, [](WorkerKind, int, const PlacedDevices&) {}});
  scaler.begin();
  proto::ScaleRun order;
  order.set_request(1);
  order.add_remove_targets("cpu:2");
  scaler.take(order);
  course.wait_for("to leave");
  course.add("has left");
  WorkersReport report;
  report.targets = {0};
  report.trainers = {0};
  scaler.on_workers(report);
  course.wait_for("end cpu:2");
  workers.take(cpu(2), proto::WorkerEnded());
  const std::string answer = "has targets alpha/cpu:0 and trainers alpha/cpu:1";
  course.wait_for(answer);
  EXPECT_THAT(course.events(), ElementsAre("to leave", "has left", "end cpu:2", answer));
  workers.stop();
  scaler.stop();
}

// A run tells which workers it has when that changes: until then it has those of its placement.
TEST(Scaler, NoProcessIsEndedBeforeTheRunHasLetItsWorkerGo) {
  // Often, as the wrong order of two threads is not seen every time.
  for (int i = 0; i < 200; ++i) take_one_out();
}

TEST(Scaler, AnOrderIsAnsweredWhenItsNewWorkerIsGivenUp) {
  Course course;
  RunControl control;
  control.attach([&course](const RunControl::Message& message) {
    if (std::holds_alternative<RunControl::Ready>(message)) course.add("ready");
  });
  ClusterPlacement placement;
  placement.targets = {cpu(0)};
  placement.trainers = {cpu(1)};
  WorkerSet workers(placement, {},
                    {[](const PlacedDevices&, const proto::Frame&) {},
                     [&course](const std::string&, const proto::Frame& frame) {
                       if (frame.has_spawn())
                         course.add("spawn " + frame.spawn().worker().device());
                     }},
                    control, system_clock());
  Scaler scaler(placement, {}, "alpha", workers, control,
                {[&course](const proto::RunOrderReply& reply) { course.add(reply.error()); },
                 [](const proto::RunPlacement&) {}, [](WorkerKind, int, const PlacedDevices&) {}});
  scaler.begin();
  proto::ScaleRun order;
  order.set_request(1);
  order.add_add_targets("cpu:3");
  scaler.take(order);
  course.wait_for("spawn cpu:3");
  workers.take(cpu(3), proto::WorkerLoaded());
  workers.take(cpu(3), proto::WorkerPrepared());
  course.wait_for("ready");
  proto::WorkerEnded ended;
  ended.set_how("signal 9 (Killed)");
  workers.take(cpu(3), ended);
  course.wait_for("the worker of alpha/cpu:3 (target 1) is not started again: signal 9 (Killed)");
  workers.stop();
  scaler.stop();
}

}  // namespace
}  // namespace percheron
