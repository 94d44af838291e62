#include "model/acceptance.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/random.h"
#include "model/round_keeper.h"
#include "tests/test_seed.h"

namespace percheron {
namespace {

using Ids = std::vector<int32_t>;

TEST(Acceptance, AMatchAfterAMissCountsNothing) {
  EXPECT_EQ(accepted_prefix(Ids{1, 9, 3}, Ids{1, 2, 3, 4}), 1);
  EXPECT_EQ(accepted_prefix(Ids{9, 2, 3}, Ids{1, 2, 3, 4}), 0);
  EXPECT_EQ(accepted_prefix(Ids{1, 2, 3}, Ids{1, 2, 3, 4}), 3);
  EXPECT_EQ(accepted_prefix(Ids{}, Ids{1}), 0);
}

TEST(Acceptance, LengthIsOnePlusTheSumOverPositions) {
  const TestSeed seed(11);
  Random random(seed.value());
  AcceptanceCounts counts;
  for (int i = 0; i < 500; ++i) {
    const int64_t drafted = static_cast<int64_t>(random.below(8));
    counts.add(
        Round{drafted, static_cast<int64_t>(random.below(static_cast<uint64_t>(drafted) + 1))});
  }
  const std::vector<double> shares = counts.accepted_per_position();
  EXPECT_NEAR(counts.acceptance_length(), 1.0 + std::accumulate(shares.begin(), shares.end(), 0.0),
              1e-12);
}

TEST(Acceptance, CountsOfTwoMachinesAddUp) {
  AcceptanceCounts a, b, both;
  for (const Round& round : {Round{4, 4}, Round{4, 0}}) {
    a.add(round);
    both.add(round);
  }
  for (const Round& round : {Round{6, 5}, Round{2, 1}}) {
    b.add(round);
    both.add(round);
  }
  a.add(b);
  EXPECT_EQ(a.rounds(), both.rounds());
  EXPECT_EQ(a.accepted(), 10);
  EXPECT_EQ(a.drafted(), 16);
  EXPECT_EQ(a.accepted_per_position(), both.accepted_per_position());
}

TEST(Acceptance, APositionThatNoRoundReachedHasNoConditionalShare) {
  AcceptanceCounts counts;
  counts.add(Round{3, 1});
  counts.add(Round{3, 0});
  const auto shares = counts.conditional_per_position();
  ASSERT_EQ(shares.size(), 3u);
  EXPECT_EQ(shares[0], 0.5);
  EXPECT_EQ(shares[1], 0.0);
  EXPECT_EQ(shares[2], std::nullopt);
  EXPECT_EQ(AcceptanceCounts().acceptance_length(), 1.0);
}

TEST(Acceptance, SlotsThatDoNotCountEndARun) {
  BlockAgreement agreement;
  agreement.add(std::vector<uint8_t>{1, 1, 1}, std::vector<uint8_t>{1, 0, 1});
  agreement.add(std::vector<uint8_t>{1, 1, 1}, std::vector<uint8_t>{0, 0, 0});
  EXPECT_EQ(agreement.mean_run_plus_one(), 2.0);
  EXPECT_EQ(agreement.accuracy_per_position(), (std::vector<double>{1.0, 0.0, 1.0}));
}

TEST(RoundKeeper, PlainDecodingIsRoundsWithoutDrafts) {
  RoundKeeper keeper(3, {});
  keeper.begin(5);
  EXPECT_EQ(keeper.add_round(0, Ids{6}), 1);
  EXPECT_FALSE(keeper.done());
  EXPECT_EQ(keeper.add_round(0, Ids{7}), 1);
  EXPECT_TRUE(keeper.done());
  EXPECT_FALSE(keeper.stopped());
  EXPECT_EQ(keeper.tokens(), (Ids{5, 6, 7}));
}

TEST(RoundKeeper, AStopTokenCutsTheOutputButNotTheRound) {
  RoundKeeper keeper(100, std::vector<int64_t>{8});
  keeper.begin(5);
  EXPECT_EQ(keeper.add_round(4, Ids{6, 8, 7, 9}), 2);
  EXPECT_TRUE(keeper.stopped());
  EXPECT_EQ(keeper.tokens(), (Ids{5, 6, 8}));
  EXPECT_EQ(keeper.rounds().back().accepted, 3);
}

TEST(RoundKeeper, TheLimitCutsTheOutputButNotTheRound) {
  RoundKeeper keeper(3, {});
  keeper.begin(5);
  EXPECT_EQ(keeper.add_round(5, Ids{1, 2, 3, 4, 5, 6}), 2);
  EXPECT_TRUE(keeper.done());
  EXPECT_FALSE(keeper.stopped());
  EXPECT_EQ(keeper.rounds().back().accepted, 5);
}

TEST(RoundKeeper, AStopTokenOfThePrefillEndsTheSequence) {
  RoundKeeper keeper(100, std::vector<int64_t>{8});
  keeper.begin(8);
  EXPECT_TRUE(keeper.done() && keeper.stopped());
  EXPECT_TRUE(keeper.rounds().empty());
}

}  // namespace
}  // namespace percheron
