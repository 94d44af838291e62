#include "actors/work_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <vector>

#include "actors/run_meter.h"

namespace percheron {
namespace {

TEST(WorkThread, RunsJobsInTheOrderOfTheirPosting) {
  WorkThread thread("test", system_clock());
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) thread.post([&order, i] { order.push_back(i); });
  thread.drain();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(WorkThread, StopWaitsForTheRunningJobAndDropsTheRest) {
  WorkThread thread("test", system_clock());
  std::promise<void> began, go_on;
  std::atomic<bool> finished{false}, second{false};
  thread.post([&] {
    began.set_value();
    go_on.get_future().wait();
    finished = true;
  });
  thread.post([&] { second = true; });
  began.get_future().wait();
  std::thread stopper([&] { thread.stop(); });
  while (thread.waiting() > 0) std::this_thread::yield();  // dropped by stop()
  go_on.set_value();
  stopper.join();
  EXPECT_TRUE(finished);
  EXPECT_FALSE(second);
  thread.post([&] { second = true; });
  EXPECT_FALSE(second) << "a stopped thread takes no more";
}

TEST(WorkThread, FreesWhatAJobHoldsBeforeTheNext) {
  WorkThread thread("test", system_clock());
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  thread.post([held = std::move(held)] {});
  bool gone = false;
  thread.post([&] { gone = watch.expired(); });
  thread.drain();
  EXPECT_TRUE(gone);
}

TEST(RunMeter, TellsCapacityWhileBusyAndTheShareOfWaiting) {
  RunMeter meter(2);
  meter.start(0);
  meter.target_worked(1000, 2);
  meter.trainer_worked(600, 1);
  meter.trainer_worked(600, 3);
  meter.step_done(4);
  const RunMeter::Rates rates = meter.rates();
  EXPECT_DOUBLE_EQ(rates.target_tokens_per_second, 500);
  EXPECT_DOUBLE_EQ(rates.trainer_tokens_per_second, 300);
  EXPECT_DOUBLE_EQ(rates.tokens_per_second, 300);
  EXPECT_DOUBLE_EQ(rates.wait_share, 0.5) << "4 of 8 trainer seconds";
  EXPECT_DOUBLE_EQ(rates.step_seconds, 4);
}

TEST(RunMeter, CountsTheTimeOfTrainersThatComeFromThenOn) {
  RunMeter meter(1);
  meter.start(0);
  meter.set_trainers(3, 2);
  meter.trainer_worked(100, 4);
  meter.step_done(4);
  EXPECT_DOUBLE_EQ(meter.rates().wait_share, 0.5) << "4 of 2 + 6 trainer seconds";
}

TEST(RunMeter, LooksAtTheLastStepsOnly) {
  RunMeter meter(1);
  meter.start(0);
  for (int step = 1; step <= 200; ++step) {
    meter.trainer_worked(10, step <= 100 ? 1 : 0.5);
    meter.step_done(step);
  }
  EXPECT_DOUBLE_EQ(meter.rates().wait_share, 0.5);
  EXPECT_DOUBLE_EQ(meter.rates().mean_step_seconds, 1);
}

// The first figures once counted held-out features and evaluations as waiting: 95 %.
TEST(RunMeter, CountsNoWaitingBeforeTheFirstStepNorInEvaluations) {
  RunMeter meter(1);
  meter.target_worked(1000, 90);
  meter.trainer_elsewhere(5);
  meter.start(100);
  meter.trainer_worked(10, 3);
  meter.trainer_elsewhere(6);
  meter.step_done(110);
  EXPECT_DOUBLE_EQ(meter.rates().wait_share, 0.25) << "3 of 4 seconds for steps";
  EXPECT_DOUBLE_EQ(meter.rates().mean_step_seconds, 10);
  EXPECT_DOUBLE_EQ(meter.target_busy_seconds(), 90);
}

TEST(WorkThread, DrainReturnsWhenTheThreadIsStopped) {
  WorkThread stopped("test", system_clock());
  stopped.stop();
  stopped.drain();

  WorkThread thread("test", system_clock());
  std::promise<void> began, go_on;
  thread.post([&] {
    began.set_value();
    go_on.get_future().wait();
  });
  thread.post([] {});  // dropped by stop()
  began.get_future().wait();
  std::thread drainer([&] { thread.drain(); });
  std::thread stopper([&] { thread.stop(); });
  while (thread.waiting() > 0) std::this_thread::yield();
  go_on.set_value();
  drainer.join();
  stopper.join();
}

TEST(WorkThread, WaitingForTheEndOfAStuckJobHasALimit) {
  WorkThread thread("test", system_clock());
  std::promise<void> began, go_on;
  thread.post([&] {
    began.set_value();
    go_on.get_future().wait();
  });
  began.get_future().wait();
  thread.close();
  EXPECT_FALSE(thread.wait_ended(0.01));
  go_on.set_value();
  EXPECT_TRUE(thread.wait_ended(60));
}

}  // namespace
}  // namespace percheron
