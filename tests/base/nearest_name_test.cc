#include "base/nearest_name.h"

#include <gtest/gtest.h>

#include <array>

namespace percheron {
namespace {

constexpr std::array<std::string_view, 4> kKeys = {"learning_rate", "loss_mask", "seed",
                                                   "batch_tokens"};

TEST(NearestName, EditDistanceCountsASwapAsOne) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("seed", "sede"), 1u);
  EXPECT_EQ(edit_distance("same", "same"), 0u);
}

TEST(NearestName, FindsTheNameThatWasMeant) {
  EXPECT_EQ(nearest_name("learning_rat", kKeys), "learning_rate");
  EXPECT_EQ(nearest_name("learningrate", kKeys), "learning_rate");
  EXPECT_EQ(nearest_name("sede", kKeys), "seed");
}

TEST(NearestName, IsEmptyWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("optimizer", kKeys), "");
  EXPECT_EQ(nearest_name("", kKeys), "");
  EXPECT_EQ(nearest_name("seed", {}), "");
}

}  // namespace
}  // namespace percheron
