#include "data/transport/byte_credits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

namespace percheron {
namespace {

using testing::HasSubstr;

TEST(ByteCredits, AreGivenBackAtTheEndOfTheHold) {
  ByteCredits credits(100);
  {
    auto hold = credits.take(60, Deadline::now());
    ASSERT_TRUE(hold.ok());
    EXPECT_EQ(credits.bytes_held(), 60u);
    const auto late = credits.take(41, Deadline::now());
    EXPECT_EQ(late.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(late.status().message(), HasSubstr("hold 60 of 100 bytes"));
    EXPECT_TRUE(credits.take(40, Deadline::now()).ok());
  }
  EXPECT_EQ(credits.bytes_held(), 0u);
}

TEST(ByteCredits, MoreThanAllIsRefusedAtOnce) {
  ByteCredits credits(100);
  EXPECT_EQ(credits.take(101, Deadline::never()).status().code(), StatusCode::kInvalidArgument);
}

TEST(ByteCredits, MovedHoldsGiveBackOnce) {
  ByteCredits credits(100);
  auto first = credits.take(10, Deadline::now()).value();
  auto second = credits.take(20, Deadline::now()).value();
  first = std::move(second);
  EXPECT_EQ(credits.bytes_held(), 20u);
  first.release();
  first.release();
  EXPECT_EQ(credits.bytes_held(), 0u);
}

// The large one came first: the small one may not overtake it for ever.
TEST(ByteCredits, WhoWaitsLongestIsServedFirst) {
  ByteCredits credits(100);
  std::optional<ByteCredits::Hold> hold = credits.take(50, Deadline::now()).value();
  std::atomic<bool> large_asks{false}, large_served{false};
  std::thread large([&] {
    const auto taken = credits.take(100, Deadline::never(), [&] {
      large_asks = true;  // asked before the first wait
      return false;
    });
    large_served = taken.ok();
  });
  while (!large_asks) std::this_thread::yield();
  EXPECT_EQ(credits.take(10, Deadline::now()).status().code(), StatusCode::kUnavailable);
  hold.reset();
  large.join();
  EXPECT_TRUE(large_served);
  EXPECT_TRUE(credits.take(10, Deadline::now()).ok());
}

TEST(ByteCredits, AWaitIsCancelled) {
  ByteCredits credits(100);
  const auto hold = credits.take(100, Deadline::now()).value();
  std::atomic<bool> cancelled{false};
  std::thread waiter([&] {
    const auto taken = credits.take(1, Deadline::never(), [&] { return cancelled.load(); });
    EXPECT_EQ(taken.status().code(), StatusCode::kCancelled);
  });
  cancelled = true;
  credits.wake();
  waiter.join();
}

TEST(ByteCredits, NeverExceedTheirLimitAmongManyThreads) {
  constexpr uint64_t kMax = 1000;
  ByteCredits credits(kMax);
  std::atomic<uint64_t> held{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 300; ++i) {
        const uint64_t bytes = 1 + (i * 7919 + t * 104729) % kMax;
        const auto hold = credits.take(bytes, Deadline::never()).value();
        EXPECT_LE(held += bytes, kMax);
        held -= bytes;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(credits.bytes_held(), 0u);
}

}  // namespace
}  // namespace percheron
