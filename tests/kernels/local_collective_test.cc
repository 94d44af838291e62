#include <cmath>
#include <future>
#include <thread>
#include <utility>

#include "base/random.h"
#include "gtest/gtest.h"
#include "kernels/collective.h"
#include "tests/kernels/collective_values.h"

namespace percheron {
namespace {

TEST(LocalCollective, SumsInRankOrderOnEveryRank) {
  for (const int size : {1, 2, 3, 5}) {
    auto group = make_local_collectives(size);
    const size_t n = 1001;
    std::vector<std::vector<float>> values(static_cast<size_t>(size), std::vector<float>(n));
    Random random(7);
    for (auto& rank : values) {
      for (float& value : rank) value = static_cast<float>(random.normal());
    }
    std::vector<float> expected = values[0];
    for (size_t rank = 1; rank < values.size(); ++rank) {
      for (size_t i = 0; i < n; ++i) expected[i] += values[rank][i];
    }
    on_all(group, [&](Collective& member) {
      EXPECT_EQ(member.size(), size);
      auto& mine = values[static_cast<size_t>(member.rank())];
      EXPECT_TRUE(member.all_reduce_sum(std::span<float>(mine)).ok());
    });
    for (const auto& rank : values) EXPECT_EQ(rank, expected);
  }
}

TEST(LocalCollective, ReducesManyTimesWithoutLosingStep) {
  auto group = make_local_collectives(4);
  on_all(group, [](Collective& member) {
    for (int round = 0; round < 500; ++round) {
      double values[3] = {1.0 * round, 1.0 * member.rank(), 1};
      ASSERT_TRUE(member.all_reduce_sum(std::span<double>(values)).ok());
      EXPECT_EQ(values[0], 4.0 * round);
      EXPECT_EQ(values[1], 6);
      EXPECT_EQ(values[2], 4);
    }
  });
}

TEST(LocalCollective, BroadcastsRankZero) {
  auto group = make_local_collectives(3);
  on_all(group, [](Collective& member) {
    std::vector<float> values(10, static_cast<float>(member.rank() + 1));
    ASSERT_TRUE(member.broadcast(values).ok());
    EXPECT_EQ(values, std::vector<float>(10, 1.f));
    ASSERT_TRUE(member.broadcast({}).ok());
  });
}

TEST(LocalCollective, AbortEndsPendingAndLaterCalls) {
  auto group = make_local_collectives(2);
  Status pending;
  std::thread waiting([&] {
    std::vector<float> values(4);
    pending = group[0]->all_reduce_sum(std::span<float>(values));
  });
  group[1]->abort();
  waiting.join();
  EXPECT_EQ(pending.code(), StatusCode::kUnavailable);
  for (auto& member : group) {
    std::vector<double> values(4);
    EXPECT_EQ(member->all_reduce_sum(std::span<double>(values)).code(), StatusCode::kUnavailable);
    std::vector<float> floats(4);
    EXPECT_EQ(member->broadcast(floats).code(), StatusCode::kUnavailable);
  }
}

TEST(LocalCollective, AMemberThatLeavesEndsTheGroup) {
  auto group = make_local_collectives(2);
  group[1].reset();
  std::vector<float> values(4);
  EXPECT_EQ(group[0]->all_reduce_sum(std::span<float>(values)).code(), StatusCode::kUnavailable);
}

TEST(LocalCollective, TheLastReductionSucceedsThoughAMemberLeavesRightAfter) {
  for (int round = 0; round < 200; ++round) {
    auto group = make_local_collectives(3);
    std::vector<std::thread> threads;
    for (auto& member : group) {
      threads.emplace_back([&member] {
        std::vector<float> values(100, 1.f);
        EXPECT_TRUE(member->all_reduce_sum(std::span<float>(values)).ok());
        EXPECT_EQ(values, std::vector<float>(100, 3.f));
        member.reset();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

/// Joins on a thread of its own.
std::future<Result<std::unique_ptr<Collective>>> join(CollectiveFactory& factory,
                                                      int64_t membership, std::vector<int> members,
                                                      int self) {
  return std::async(std::launch::async, [&factory, membership, members = std::move(members), self] {
    return factory.join(membership, members, self);
  });
}

TEST(LocalCollectiveFactory, MembersMeetAndRanksFollowTheirOrder) {
  const auto factory = make_local_collective_factory(60);
  for (int64_t membership = 0; membership < 3; ++membership) {
    auto seven = join(*factory, membership, {7, 2}, 7);
    auto two = factory->join(membership, std::vector<int>{7, 2}, 2);
    auto other = seven.get();
    ASSERT_TRUE(two.ok() && other.ok());
    EXPECT_EQ((*other)->rank(), 0);
    EXPECT_EQ((*two)->rank(), 1);
    EXPECT_EQ((*two)->size(), 2);
    std::thread reducer([&other] {
      std::vector<float> values = {1};
      EXPECT_TRUE((*other)->all_reduce_sum(std::span<float>(values)).ok());
    });
    std::vector<float> values = {2};
    EXPECT_TRUE((*two)->all_reduce_sum(std::span<float>(values)).ok());
    EXPECT_EQ(values[0], 3);
    reducer.join();
  }
}

TEST(LocalCollectiveFactory, WhoWaitsForAMemberThatNeverComesGivesUp) {
  const auto factory = make_local_collective_factory(0.05);
  const auto alone = factory->join(0, std::vector<int>{0, 1}, 0);
  EXPECT_EQ(alone.status().code(), StatusCode::kUnavailable);
  // Nor does the other find half a group.
  EXPECT_EQ(factory->join(0, std::vector<int>{0, 1}, 1).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(factory->join(1, std::vector<int>{0}, 0).ok());
}

TEST(LocalCollectiveFactory, AbandonedMembershipsEndAtOnceAndLaterOnesAreFormed) {
  const auto factory = make_local_collective_factory(600);
  auto waiting = join(*factory, 3, {0, 1, 2}, 0);
  auto also = join(*factory, 3, {0, 1, 2}, 2);
  factory->abandon(3);
  EXPECT_EQ(waiting.get().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(also.get().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(factory->join(2, std::vector<int>{0}, 0).status().code(), StatusCode::kUnavailable);
  auto other = join(*factory, 4, {0, 2}, 0);
  EXPECT_TRUE(factory->join(4, std::vector<int>{0, 2}, 2).ok());
  EXPECT_TRUE(other.get().ok());
}

}  // namespace
}  // namespace percheron
