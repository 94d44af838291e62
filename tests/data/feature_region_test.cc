#include "data/feature_region.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "data/feature_block.h"

namespace percheron {
namespace {

using ::testing::HasSubstr;

Features some_features() {
  Features features;
  features.batch.id = {3, 8};
  features.batch.token_ids = {5, 6, 7, 8, 9};
  features.batch.loss_mask = {0, 1, 1, 0, 1};
  features.batch.offsets = {0, 2, 5};
  features.batch.sample_ids = {40, uint64_t{1} << 40};
  features.batch.padding = {0, 1};
  features.dtype = DType::kBf16;
  features.slots = 2;
  features.hidden_size = 3;
  features.has_last = true;
  features.hidden_states.resize(5 * 2 * 3 * 2);
  for (size_t i = 0; i < features.hidden_states.size(); ++i) {
    features.hidden_states[i] = static_cast<std::byte>(i * 7);
  }
  features.top1 = {-1, 3, 4, -1, 5};
  features.fingerprint = "a run";
  return features;
}

TEST(FeatureRegion, AnotherProcessReadsWhatWasWritten) {
  const Features features = some_features();
  const Result<FeatureRegion> region = write_feature_region(system_files(), features);
  ASSERT_TRUE(region.ok()) << region.status().message();
  const Result<Features> read = read_feature_block(system_files(), path_of(region->fd));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->batch.id, features.batch.id);
  EXPECT_EQ(micro_batch_crc32c(read->batch), micro_batch_crc32c(features.batch));
  EXPECT_EQ(read->batch.sample_ids, features.batch.sample_ids);
  EXPECT_EQ(read->hidden_states, features.hidden_states);
  EXPECT_EQ(read->top1, features.top1);
  EXPECT_TRUE(read->has_last);
  EXPECT_EQ(read->fingerprint, "a run");
}

TEST(FeatureRegion, NobodyCanChangeItAfterwards) {
  const Result<FeatureRegion> region = write_feature_region(system_files(), some_features());
  ASSERT_TRUE(region.ok());
  EXPECT_LT(pwrite(region->fd.get(), "x", 1, 0), 0);
  EXPECT_LT(ftruncate(region->fd.get(), 1), 0);
}

TEST(FeatureBlock, WhatContradictsItselfIsRefused) {
  const std::string path = testing::TempDir() + "block.safetensors";
  Features features = some_features();
  features.batch.offsets = {0, 4};
  ASSERT_TRUE(write_feature_block(system_files(), path, features).ok());
  EXPECT_THAT(read_feature_block(system_files(), path).status().message(),
              HasSubstr("contradict each other"));
  features = some_features();
  features.top1.pop_back();
  ASSERT_TRUE(write_feature_block(system_files(), path, features).ok());
  EXPECT_EQ(read_feature_block(system_files(), path).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace percheron
