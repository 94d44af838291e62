#include "kernels/cpu/gloo_collective.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <numeric>

#include "kernels/cpu/gloo_network.h"
#include "tests/kernels/collective_values.h"

namespace percheron {
namespace {

using std::chrono_literals::operator""ms;
using Group = std::vector<std::unique_ptr<Collective>>;

class GlooCollectives : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(system_files().remove_all(directory_).ok()); }
  void TearDown() override { EXPECT_TRUE(system_files().remove_all(directory_).ok()); }

  std::unique_ptr<CollectiveFactory> factory(GlooOptions options = {}) {
    auto made = make_gloo_collective_factory(options,
                                             make_directory_rendezvous(system_files(), directory_));
    PERCHERON_CHECK(made.ok(), made.status().message());
    return std::move(*made);
  }

  /// `size` members of the next membership, each with sockets of its own.
  Group join(int size, GlooOptions options = {}) {
    ++membership_;
    std::vector<int> members(static_cast<size_t>(size));
    std::iota(members.begin(), members.end(), 0);
    Group group(members.size());
    std::vector<std::thread> threads;
    for (const int self : members) {
      threads.emplace_back([&, self] {
        factories_[static_cast<size_t>(self)] = factory(options);
        auto joined = factories_[static_cast<size_t>(self)]->join(membership_, members, self);
        PERCHERON_CHECK(joined.ok(), joined.status().message());
        group[static_cast<size_t>(self)] = std::move(*joined);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return group;
  }

  const std::string directory_ =
      testing::TempDir() + "percheron_gloo_threads_" + std::to_string(getpid());
  int64_t membership_ = 0;
  std::vector<std::unique_ptr<CollectiveFactory>> factories_{8};
};

TEST_F(GlooCollectives, SumInRankOrderWhateverTheTermsAre) {
  // The order of these shows: (1e30 - 1e30) + 1 is 1, 1e30 + (-1e30 + 1) is 0.
  Group group = join(3);
  on_all(group, [](Collective& member) {
    std::vector<float> values(5,
                              std::array{1e30f, -1e30f, 1.f}[static_cast<size_t>(member.rank())]);
    ASSERT_TRUE(member.all_reduce_sum(std::span<float>(values)).ok());
    EXPECT_EQ(values, std::vector<float>(5, 1.f));
  });
}

TEST_F(GlooCollectives, ReduceManyTimesWithoutLosingStep) {
  Group group = join(4);
  on_all(group, [](Collective& member) {
    for (int round = 0; round < 100; ++round) {
      double values[3] = {1.0 * round, 1.0 * member.rank(), 1};
      ASSERT_TRUE(member.all_reduce_sum(std::span<double>(values)).ok());
      EXPECT_EQ(values[0], 4.0 * round);
      EXPECT_EQ(values[1], 6);
      EXPECT_EQ(values[2], 4);
    }
  });
}

// Rank 0 waits for nobody's values: its last message must not overtake those that fill the sockets.
// The others come when it has said all that it says by itself.
TEST_F(GlooCollectives, BroadcastsToMembersThatComeLate) {
  Group group = join(3, {.operation_limit = 10'000ms});
  for (int round = 0; round < 5; ++round) {
    std::atomic<bool> begun = false;
    on_all(group, [&](Collective& member) {
      if (member.rank() == 0) {
        std::vector<float> values(4'000'000, 1.f);
        begun = true;
        const Status status = member.broadcast(values);
        ASSERT_TRUE(status.ok()) << status.message();
        return;
      }
      while (!begun) std::this_thread::yield();
      std::vector<float> values(4'000'000);  // Takes longer than rank 0 needs to begin.
      const Status status = member.broadcast(values);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(values, std::vector<float>(4'000'000, 1.f));
    });
  }
}

TEST_F(GlooCollectives, TakeTheirRankFromTheOrderOfTheMembers) {
  const std::vector<int> members = {7, 3};
  auto other_factory = factory(), own_factory = factory();
  std::thread other([&] {
    auto joined = other_factory->join(1, members, 7);
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    EXPECT_EQ((*joined)->rank(), 0);
  });
  auto joined = own_factory->join(1, members, 3);
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  EXPECT_EQ((*joined)->rank(), 1);
  EXPECT_EQ((*joined)->size(), 2);
  other.join();
}

TEST_F(GlooCollectives, AMemberAloneNeedsNobody) {
  Group group = join(1);
  EXPECT_FALSE(system_files().exists(directory_));
  std::vector<float> values = {1, 2};
  EXPECT_TRUE(group[0]->all_reduce_sum(std::span<float>(values)).ok());
  EXPECT_TRUE(group[0]->broadcast(values).ok());
  EXPECT_EQ(values, (std::vector<float>{1, 2}));
  group[0]->abort();
  EXPECT_EQ(group[0]->broadcast(values).code(), StatusCode::kUnavailable);
}

TEST_F(GlooCollectives, AbortEndsPendingAndLaterCallsOfAll) {
  Group group = join(3);
  Status pending[2];
  std::vector<std::thread> waiting;
  for (size_t rank : {0, 1}) {
    waiting.emplace_back([&, rank] {
      std::vector<float> values(1'000'000);
      pending[rank] = group[rank]->all_reduce_sum(std::span<float>(values));
    });
  }
  group[0]->abort();
  for (std::thread& thread : waiting) thread.join();
  for (const Status& status : pending) EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  const std::string& message = pending[0].message();
  EXPECT_TRUE(message.starts_with("group of membership 1, rank 0 of 3: ")) << message;
  EXPECT_TRUE(message.ends_with("was aborted; form a new group")) << message;
  for (auto& member : group) {
    std::vector<double> values(4);
    EXPECT_EQ(member->all_reduce_sum(std::span<double>(values)).code(), StatusCode::kUnavailable);
    std::vector<float> floats(4);
    EXPECT_EQ(member->broadcast(floats).code(), StatusCode::kUnavailable);
  }
  group = join(2);
  on_all(group, [](Collective& member) {
    std::vector<float> values(1, 1.f);
    EXPECT_TRUE(member.all_reduce_sum(std::span<float>(values)).ok());
  });
}

TEST_F(GlooCollectives, AbortAtAnyMomentOfASumEndsIt) {
  for (int round = 0; round < 20; ++round) {
    Group group = join(2);
    std::atomic<int> reduced = 0;
    std::thread aborting([&] {
      while (reduced < round) std::this_thread::yield();
      group[round % 2]->abort();
    });
    on_all(group, [&](Collective& member) {
      std::vector<float> values(100'000);
      while (member.all_reduce_sum(std::span<float>(values)).ok()) ++reduced;
    });
    aborting.join();
  }
}

TEST_F(GlooCollectives, AMemberThatLeavesEndsTheGroup) {
  Group group = join(2);
  group[1].reset();
  std::vector<float> values(4);
  EXPECT_EQ(group[0]->all_reduce_sum(std::span<float>(values)).code(), StatusCode::kUnavailable);
}

TEST_F(GlooCollectives, TheLastReductionSucceedsThoughAMemberLeavesRightAfter) {
  for (int round = 0; round < 20; ++round) {
    Group group = join(3);
    std::vector<std::thread> threads;
    for (auto& member : group) {
      threads.emplace_back([&member] {
        std::vector<float> values(300'000, 1.f);
        const Status status = member->all_reduce_sum(std::span<float>(values));
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(values, std::vector<float>(300'000, 3.f));
        member.reset();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(GlooCollectives, DifferentSizesEndAtTheLimitWithoutMixingValues) {
  Group group = join(2, {.operation_limit = 200ms});
  on_all(group, [](Collective& member) {
    std::vector<float> values(member.rank() == 0 ? 10 : 11);
    EXPECT_EQ(member.all_reduce_sum(std::span<float>(values)).code(), StatusCode::kUnavailable);
  });
}

TEST_F(GlooCollectives, SayWhoDidNotCome) {
  const std::vector<int> members = {0, 1};
  const auto joined = factory({.join_limit = 50ms})->join(5, members, 0);
  ASSERT_FALSE(joined.ok());
  EXPECT_EQ(joined.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(
      joined.status().message().find(
          "group of membership 5, rank 0 of 2: membership-5.rank-1 did not come within 50 ms: "),
      std::string::npos)
      << joined.status().message();
}

TEST_F(GlooCollectives, AnAbandonedMembershipEndsItsJoinsAndThoseBefore) {
  const std::vector<int> members = {0, 1};
  const auto mine = factory({.join_limit = 600'000ms});
  Status pending;
  std::thread joining([&] { pending = mine->join(5, members, 0).status(); });
  mine->abandon(5);
  joining.join();
  EXPECT_EQ(pending.code(), StatusCode::kUnavailable);
  EXPECT_NE(pending.message().find("was abandoned"), std::string::npos) << pending.message();
  mine->abandon(3);  // Takes nothing back.
  EXPECT_EQ(mine->join(4, members, 0).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(mine->join(5, members, 0).status().code(), StatusCode::kUnavailable);
  const std::vector<int> alone = {0};
  EXPECT_TRUE(mine->join(6, alone, 0).ok());
}

TEST_F(GlooCollectives, RefuseAMembershipThatWasJoinedBefore) {
  const std::vector<int> members = {0, 1};
  const auto mine = factory({.join_limit = 50ms});
  EXPECT_EQ(mine->join(5, members, 0).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(mine->join(5, members, 0).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(mine->join(6, members, 2).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(GlooCollectives, BindToAnInterfaceOrAnAddressOfThisMachineOnly) {
  const auto store = make_directory_rendezvous(system_files(), directory_);
  for (const std::string good : {"lo", "127.0.0.1"}) {
    EXPECT_TRUE(make_gloo_collective_factory({.interface = good}, store).ok()) << good;
  }
  // 192.0.2.0/24 is for documentation: no machine has it.
  for (const std::string bad : {"", "no_such_interface", "localhost", "192.0.2.1", "1.2.3"}) {
    const auto refused = make_gloo_collective_factory({.interface = bad}, store);
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("cluster.collective_interface"), std::string::npos);
    EXPECT_NE(refused.status().message().find("'" + bad + "'"), std::string::npos);
    EXPECT_EQ(refused.status().message().find('\n'), std::string::npos);
  }
}

TEST(NoBrokenPipeSignal, HoldsBackItsOwnAndLeavesTheMaskAsItWas) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  close(pipe_ends[0]);
  sigset_t before, after, pending;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  {
    const NoBrokenPipeSignal no_signal;
    EXPECT_EQ(write(pipe_ends[1], "x", 1), -1);  // Would end this test.
  }
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  sigpending(&pending);
  EXPECT_EQ(sigismember(&after, SIGPIPE), sigismember(&before, SIGPIPE));
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
  close(pipe_ends[1]);
}

}  // namespace
}  // namespace percheron
