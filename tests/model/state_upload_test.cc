#include "model/state_upload.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/model/toy_model.h"

namespace percheron {
namespace {

constexpr int64_t kTokens = 6, kHidden = 8;
constexpr size_t kBytes = kTokens * kHidden * sizeof(float);

FeaturesPtr features_of(float first, size_t bytes = kBytes) {
  auto features = std::make_shared<Features>();
  features->dtype = DType::kF32;
  features->slots = 1;
  features->hidden_size = kHidden;
  std::vector<float> states(bytes / sizeof(float));
  std::iota(states.begin(), states.end(), first);
  features->hidden_states.resize(bytes);
  std::memcpy(features->hidden_states.data(), states.data(), bytes);
  return features;
}

class StateUploadTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<StateUpload>> made = StateUpload::make(device_.context().device, kBytes);
    ASSERT_TRUE(made.ok()) << made.status().message();
    upload_ = std::move(made).value();
  }
  void put(const FeaturesPtr& features) {
    const Status status = upload_->put(features);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  /// The first state that the device has of them; none if they are not there.
  std::optional<float> read(const Features& features) {
    Context& context = device_.context();
    const Arena::Scope scope(context.arena);
    const TensorView to = context.arena.take(DType::kF32, {kTokens, kHidden});
    if (!upload_->copy_to(context, features, to)) return std::nullopt;
    std::vector<float> states(kTokens * kHidden);
    context.device.copy_bytes(context.stream, states.data(), to.data(), kBytes);
    EXPECT_TRUE(context.stream.wait_idle().ok());
    for (size_t i = 1; i < states.size(); ++i) EXPECT_EQ(states[i], states[0] + float(i));
    return states[0];
  }

  TestDevice device_{1};
  std::unique_ptr<StateUpload> upload_;
};

TEST_F(StateUploadTest, WhatWasPutIsThereOnce) {
  const FeaturesPtr first = features_of(100), second = features_of(200);
  EXPECT_EQ(read(*first), std::nullopt);
  put(first);
  put(first);
  put(second);
  EXPECT_EQ(read(*first), 100);
  EXPECT_EQ(read(*first), std::nullopt);
  EXPECT_EQ(read(*second), 200);
  EXPECT_EQ(upload_->found(), 2);
  EXPECT_EQ(upload_->missed(), 2);
}

TEST_F(StateUploadTest, AThirdTakesThePlaceOfTheOldest) {
  const FeaturesPtr first = features_of(100), second = features_of(200), third = features_of(300);
  for (const FeaturesPtr& features : {first, second, third}) put(features);
  EXPECT_EQ(read(*first), std::nullopt);
  EXPECT_EQ(read(*second), 200);
  EXPECT_EQ(read(*third), 300);
}

// They were given back to the store's limit only when two others had come.
TEST_F(StateUploadTest, WhatNobodyComputesIsNotKept) {
  FeaturesPtr dropped = features_of(100);
  const std::weak_ptr<const Features> watched = dropped;
  put(dropped);
  dropped.reset();
  EXPECT_TRUE(watched.expired());
  const FeaturesPtr next = features_of(200);
  EXPECT_EQ(read(*next), std::nullopt);
  put(next);
  EXPECT_EQ(read(*next), 200);
}

TEST_F(StateUploadTest, StatesPassInTheOrderOfTheStreamAndTakeNoMemory) {
  const DeviceCounters& counters = device_.context().device.counters();
  ASSERT_EQ(read(*features_of(0)), std::nullopt);  // The arena has its block.
  const uint64_t allocations = counters.allocations, pinned = counters.host_allocations;
  for (int i = 0; i < 20; ++i) {
    const FeaturesPtr features = features_of(static_cast<float>(1000 * i));
    put(features);
    EXPECT_EQ(read(*features), 1000 * i);
  }
  put(features_of(1, 2 * kBytes));  // It fits nowhere, and is copied as if it had not been put.
  EXPECT_EQ(counters.allocations, allocations);
  EXPECT_EQ(counters.host_allocations, pinned);
}

}  // namespace
}  // namespace percheron
