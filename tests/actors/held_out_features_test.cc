#include "actors/held_out_features.h"

#include <gtest/gtest.h>

namespace percheron {
namespace {

FeaturesPtr features_of(int64_t index, int64_t tokens) {
  auto features = std::make_shared<Features>();
  features->batch.id = {-1, index};
  features->batch.token_ids.resize(static_cast<size_t>(tokens));
  features->hidden_states.resize(static_cast<size_t>(tokens) * 16);
  return features;
}

TEST(HeldOutFeatures, NeverHoldMoreThanTheirLimit) {
  const size_t bytes = features_of(0, 10)->bytes();
  HeldOutFeatures held(2 * bytes);
  EXPECT_TRUE(held.add(features_of(1, 10)).ok());
  EXPECT_TRUE(held.add(features_of(0, 10)).ok());
  const Status status = held.add(features_of(2, 1));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("evaluate.feature_bytes_max"), std::string::npos);
  EXPECT_EQ(held.bytes(), 2 * bytes);
  ASSERT_EQ(held.all().size(), 2u);
  EXPECT_EQ(held.all()[0]->batch.id.index, 0) << "in the order of their micro-batches";
}

TEST(HeldOutFeatures, MicroBatchThatComesAgainCountsOnce) {
  const size_t bytes = features_of(0, 10)->bytes();
  HeldOutFeatures held(bytes);
  EXPECT_TRUE(held.add(features_of(0, 10)).ok());
  EXPECT_TRUE(held.add(features_of(0, 10)).ok());
  EXPECT_EQ(held.bytes(), bytes);
}

}  // namespace
}  // namespace percheron
