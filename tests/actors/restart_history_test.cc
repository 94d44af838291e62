// How long a process that dies is waited for, by a clock that the test turns.

#include "actors/policy/restart_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace percheron {
namespace {

using ::testing::ElementsAre;

/// A process that works for `work_seconds`, in which the run gets on by `steps`, and dies.
class Mortal {
 public:
  std::optional<double> live(double work_seconds, int64_t steps) {
    history_.working(now_, step_);
    now_ += work_seconds;
    step_ += steps;
    return die();
  }
  /// Before it works.
  std::optional<double> die() {
    const std::optional<double> wait = history_.ended(now_, step_);
    now_ += wait.value_or(0);
    return wait;
  }
  RestartHistory& history() { return history_; }
  void pass(double seconds) { now_ += seconds; }

 private:
  RestartHistory history_{RestartLimits{}};
  double now_ = 0;
  int64_t step_ = 0;
};

TEST(RestartHistory, OneThatDoesNotLiveWaitsLongerEachTimeAndIsGivenUp) {
  Mortal mortal;
  std::vector<double> waits;
  for (int i = 0; i < 5; ++i) waits.push_back(mortal.die().value());
  EXPECT_THAT(waits, ElementsAre(0.5, 1, 2, 4, 8));
  EXPECT_FALSE(mortal.die());
  EXPECT_EQ(mortal.history().count(), 6);
}

TEST(RestartHistory, OneThatLivedAndGotOnBeginsWithTheShortestWaitHoweverOftenItDies) {
  Mortal mortal;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(mortal.live(5, 1), 0.5);
}

TEST(RestartHistory, StepsThatAreDoneAgainAreNoProgress) {
  Mortal mortal;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(mortal.live(60, 0));
  EXPECT_FALSE(mortal.live(60, 0)) << "it ends at the same step each time";
}

TEST(RestartHistory, AShortLifeIsNoProofThoughOthersGotOn) {
  Mortal mortal;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(mortal.live(4.9, 100));
  EXPECT_FALSE(mortal.live(4.9, 100));
}

TEST(RestartHistory, WhoWasWaitedForLongHasToWorkAsLong) {
  Mortal mortal;
  for (int i = 0; i < 5; ++i) mortal.die();  // the last wait is 8 s
  EXPECT_FALSE(mortal.live(7.9, 1));
  Mortal other;
  for (int i = 0; i < 5; ++i) other.die();
  EXPECT_EQ(other.live(8, 1), 0.5);
}

TEST(RestartHistory, DeathsOfLongAgoDoNotCountAndAnOperatorMayForgiveThem) {
  Mortal mortal;
  for (int i = 0; i < 4; ++i) mortal.die();
  mortal.pass(601);
  EXPECT_EQ(mortal.die(), 0.5);
  EXPECT_EQ(mortal.die(), 1);
  mortal.history().forgive();
  EXPECT_EQ(mortal.die(), 0.5);
}

}  // namespace
}  // namespace percheron
