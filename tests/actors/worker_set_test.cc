#include "actors/service/worker_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace percheron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The workers of a run, whose frames to them and their daemons are kept.
class WorkerSetTest : public testing::Test {
 protected:
  ~WorkerSetTest() override { workers_.stop(); }

  static PlacedDevices cpu(int index) { return {"a", {DeviceId{DeviceKind::kCpu, index}}}; }
  static ClusterPlacement placement() {
    ClusterPlacement placement;
    placement.targets = {{"a", {DeviceId{DeviceKind::kCpu, 0}, DeviceId{DeviceKind::kCpu, 1}}}};
    placement.trainers = {cpu(1), cpu(2)};
    return placement;
  }
  static const PlacedDevices& both() {
    static const PlacedDevices both = placement().targets.front();
    return both;
  }
  static proto::WorkerEnded end_of(int attempt, const std::string& how) {
    proto::WorkerEnded ended;
    ended.set_attempt(attempt);
    ended.set_how(how);
    return ended;
  }
  /// Tries a target out on one device, whose worker answers with its end.
  Status try_out_in_vain(const PlacedDevices& placed) {
    WorkerPlaces::Devices devices;
    devices[placed].targets = {1};
    answer_ = [this, placed](const proto::StartWorker& worker) {
      proto::WorkerEnded ended = end_of(worker.attempt(), "no luck");
      pending_.emplace_back([this, placed, ended] { workers_.take(placed, ended); });
    };
    std::thread later([this] {
      while (true) {
        std::function<void()> next;
        {
          const std::lock_guard lock(mutex_);
          if (!pending_.empty()) next = pending_.front();
        }
        if (next) return next();
        std::this_thread::yield();
      }
    });
    const Status status = workers_.try_out(devices);
    later.join();
    pending_.clear();
    return status;
  }

  std::mutex mutex_;
  std::vector<proto::StartWorker> spawned_;
  std::vector<proto::EndWorker> ended_;
  std::function<void(const proto::StartWorker&)> answer_;
  std::vector<std::function<void()>> pending_;
  RunControl control_;
  WorkerSet workers_{placement(),
                     {},
                     {[](const PlacedDevices&, const proto::Frame&) {},
                      [this](const std::string&, const proto::Frame& frame) {
                        const std::lock_guard lock(mutex_);
                        if (frame.has_end_worker()) ended_.push_back(frame.end_worker());
                        if (!frame.has_spawn()) return;
                        spawned_.push_back(frame.spawn().worker());
                        if (answer_) answer_(spawned_.back());
                      }},
                     control_,
                     system_clock()};
};

TEST_F(WorkerSetTest, ATrainerBesideAPartOfATargetIsShownWithItsOwnDevice) {
  const std::vector<proto::WorkerState> states = workers_.states();
  ASSERT_EQ(states.size(), 2U);
  EXPECT_EQ(states[0].device(), "cpu:0+1");
  EXPECT_EQ(states[0].role(), "target 0, trainer 0");
  EXPECT_EQ(states[0].actors(1).device(), "cpu:1");
  EXPECT_FALSE(states[0].actors(0).has_device());
  EXPECT_EQ(states[1].device(), "cpu:2");
}

// Words of the process before, which come late, would be taken for those of the one after it.
TEST_F(WorkerSetTest, AProcessNeverHasTheNumberOfAnEarlierOneOnItsDevices) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_THAT(try_out_in_vain(cpu(7)).message(), HasSubstr("the worker of a/cpu:7: no luck"));
  }
  std::vector<int> attempts;
  for (const proto::StartWorker& worker : spawned_) attempts.push_back(worker.attempt());
  EXPECT_THAT(attempts, ElementsAre(0, 1, 2));
  EXPECT_FALSE(workers_.attempt_of(cpu(7)).has_value()) << "it is forgotten";
}

// A device is its run's until the run says that it has done with it.
TEST_F(WorkerSetTest, TheNodeIsToldOfAWorkerThatIsGivenUpToo) {
  EXPECT_FALSE(try_out_in_vain(cpu(7)).ok());
  ASSERT_EQ(ended_.size(), 1U);
  EXPECT_EQ(ended_[0].device(), "cpu:7");
  EXPECT_EQ(ended_[0].attempt(), 0);
}

}  // namespace
}  // namespace percheron
