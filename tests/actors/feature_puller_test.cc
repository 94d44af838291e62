#include "actors/node/feature_puller.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <utility>

namespace percheron {
namespace {

/// A pull that goes on until it is cancelled.
struct LongPull {
  void begin(FeaturePuller& puller) {
    puller.post([this](PullCancellation& cancellation) {
      began.set_value();
      while (!cancellation.cancelled()) std::this_thread::yield();
      ended = true;
    });
    began.get_future().wait();
  }

  std::promise<void> began;
  std::atomic<bool> ended{false};
};

// A pull may wait for credits that only the end of its worker frees, and that waited for the pull.
TEST(FeaturePuller, TheEndOfAWorkerEndsItsPulls) {
  FeaturePuller puller("cpu:0", system_clock());
  LongPull pull;
  pull.begin(puller);
  bool waited = false;
  puller.post([&](PullCancellation&) { waited = true; });
  puller.stop();
  EXPECT_TRUE(pull.ended);
  puller.post([&](PullCancellation&) { waited = true; });
  EXPECT_FALSE(waited) << "neither what waited nor what came later";
}

TEST(FeaturePuller, WhoAsksForTooManyWaitsItself) {
  FeaturePuller puller("cpu:0", system_clock());
  LongPull pull;
  pull.begin(puller);
  std::vector<std::thread::id> by;
  for (int i = 0; i < 66; ++i) {
    puller.post([&](PullCancellation&) { by.push_back(std::this_thread::get_id()); });
  }
  EXPECT_EQ(by, std::vector(2, std::this_thread::get_id())) << "64 wait";

  // That one is cancelled, too.
  std::promise<void> began;
  std::thread reader([&] {
    puller.post([&](PullCancellation& cancellation) {
      began.set_value();
      while (!cancellation.cancelled()) std::this_thread::yield();
    });
  });
  began.get_future().wait();
  puller.cancel();
  reader.join();
}

}  // namespace
}  // namespace percheron
