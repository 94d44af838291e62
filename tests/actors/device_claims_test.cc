#include "actors/node/device_claims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace percheron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(DeviceClaims, OfTwoOrdersForADeviceOneLosesAtOnceAndGetsNothing) {
  DeviceClaims claims;
  ASSERT_TRUE(claims.reserve("one", "a", {"cuda:2", "cuda:3"}, 0).ok());
  const Status late = claims.reserve("two", "b", {"cuda:1", "cuda:2"}, 1);
  EXPECT_EQ(late.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(late.message(), HasSubstr("cuda:2 is reserved for run one, by an order"));
  EXPECT_THAT(claims.owners(1), ElementsAre(Pair("cuda:2", "one"), Pair("cuda:3", "one")));
  EXPECT_FALSE(claims.take("two", "b", {"cuda:2"}, 1).ok()) << "nor by a worker";
  ASSERT_TRUE(claims.take("one", "a", {"cuda:2", "cuda:3"}, 1).ok());
  EXPECT_THAT(claims.reserve("two", "b", {"cuda:3"}, 2).message(),
              HasSubstr("cuda:3 belongs to run one"));
}

TEST(DeviceClaims, WhatIsReservedIsFreeAgainAndWhatHasAWorkerIsNot) {
  DeviceClaims claims;
  ASSERT_TRUE(claims.reserve("one", "a", {"cuda:0", "cuda:1"}, 0).ok());
  ASSERT_TRUE(claims.take("one", "a", {"cuda:0"}, 1).ok());
  ASSERT_TRUE(claims.reserve("one", "a", {"cuda:0"}, 2).ok()) << "it may be said again";
  claims.release_reserved("one", {"cuda:0", "cuda:1"});
  EXPECT_THAT(claims.owners(3), ElementsAre(Pair("cuda:0", "one")));
  // Also while its process is started again; until the run has done with it.
  claims.release("two", {"cuda:0"});
  EXPECT_FALSE(claims.reserve("two", "b", {"cuda:0"}, 1e6).ok());
  claims.release("one", {"cuda:0"});
  EXPECT_TRUE(claims.reserve("two", "b", {"cuda:0"}, 1e6).ok());
}

TEST(DeviceClaims, AnOrderThatNeverEndsKeepsNothingForGood) {
  DeviceClaims claims;
  ASSERT_TRUE(claims.reserve("one", "a", {"cuda:0"}, 10).ok());
  EXPECT_FALSE(claims.reserve("two", "b", {"cuda:0"}, 9 + DeviceClaims::kReservedSeconds).ok());
  EXPECT_THAT(claims.owners(11 + DeviceClaims::kReservedSeconds), IsEmpty());
  EXPECT_TRUE(claims.reserve("two", "b", {"cuda:0"}, 11 + DeviceClaims::kReservedSeconds).ok());
}

TEST(DeviceClaims, ARunThatEndsOrWhoseNodeIsLostHasNothing) {
  DeviceClaims claims;
  ASSERT_TRUE(claims.take("one", "a", {"cuda:0"}, 0).ok());
  ASSERT_TRUE(claims.take("two", "b", {"cuda:1"}, 0).ok());
  ASSERT_TRUE(claims.take("one", "c", {"cuda:2"}, 0).ok()) << "a successor's";
  claims.release_all("one", "a");
  EXPECT_THAT(claims.owners(0), ElementsAre(Pair("cuda:1", "two"), Pair("cuda:2", "one")));
  claims.node_lost("b");
  EXPECT_THAT(claims.owners(0), ElementsAre(Pair("cuda:2", "one")));
}

}  // namespace
}  // namespace percheron
