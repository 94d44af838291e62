#include "data/feature_region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "base/hash.h"

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

constexpr uint64_t kPoolBytes = uint64_t{1} << 30;

Result<Features> read_back(const FeatureRegion& region) {
  return read_feature_region(region.region.fd().duplicate().value(), region.bytes, region.crc32c);
}

void expect_same(const Result<Features>& read, const Features& features) {
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->batch.id, features.batch.id);
  EXPECT_EQ(micro_batch_crc32c(read->batch), micro_batch_crc32c(features.batch));
  EXPECT_EQ(read->batch.sample_ids, features.batch.sample_ids);
  EXPECT_EQ(read->hidden_states, features.hidden_states);
  EXPECT_EQ(read->top1, features.top1);
  EXPECT_TRUE(read->has_last);
  EXPECT_EQ(read->fingerprint, "a run");
}

TEST(FeatureRegion, AnotherProcessReadsWhatWasWritten) {
  RegionPool pool("test", kPoolBytes);
  const Result<FeatureRegion> region = write_feature_region(pool, some_features());
  ASSERT_TRUE(region.ok()) << region.status().message();
  EXPECT_FALSE(region->used_before);
  EXPECT_EQ(region->crc32c, crc32c(region->region.bytes().first(region->bytes)));
  expect_same(read_back(*region), some_features());
}

TEST(FeatureRegion, UsedMemoryShowsNothingOfWhatWasThereBefore) {
  RegionPool pool("test", kPoolBytes);
  Features large = some_features();
  large.fingerprint = std::string(3000, 'x');
  pool.give_back(std::move(write_feature_region(pool, large).value().region));
  const Result<FeatureRegion> region = write_feature_region(pool, some_features());
  ASSERT_TRUE(region.ok()) << region.status().message();
  EXPECT_TRUE(region->used_before);
  EXPECT_EQ(pool.counts().reused, 1);
  expect_same(read_back(*region), some_features());
}

TEST(FeatureRegion, ManyPiecesArrive) {
  RegionPool pool("test", kPoolBytes);
  Features features = some_features();
  features.hidden_size = 100'000;
  features.hidden_states.resize(5 * 2 * 100'000 * 2);
  for (size_t i = 0; i < features.hidden_states.size(); ++i) {
    features.hidden_states[i] = static_cast<std::byte>(i * 7 + i / 251);
  }
  const Result<FeatureRegion> region = write_feature_region(pool, features);
  ASSERT_TRUE(region.ok()) << region.status().message();
  EXPECT_EQ(region->crc32c, crc32c(region->region.bytes().first(region->bytes)));
  expect_same(read_back(*region), features);
}

TEST(FeatureRegion, NobodyButItsMakerCanChangeIt) {
  RegionPool pool("test", kPoolBytes);
  const Result<FeatureRegion> region = write_feature_region(pool, some_features());
  ASSERT_TRUE(region.ok());
  EXPECT_LT(pwrite(region->region.fd().get(), "x", 1, 0), 0);
  EXPECT_LT(ftruncate(region->region.fd().get(), 1), 0);
}

TEST(FeatureRegion, MemoryThatWasUsedAgainTooEarlyIsNoticed) {
  RegionPool pool("test", kPoolBytes);
  Result<FeatureRegion> region = write_feature_region(pool, some_features());
  ASSERT_TRUE(region.ok());
  region->region.writable_bytes()[region->bytes - 1] ^= std::byte{1};
  const Result<Features> read = read_back(*region);
  EXPECT_EQ(read.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(read.status().message(), HasSubstr("contradict the checksum of their ticket"));
}

TEST(FeatureRegion, MoreBytesThanThereAreAreRefused) {
  RegionPool pool("test", kPoolBytes);
  const Result<FeatureRegion> region = write_feature_region(pool, some_features());
  ASSERT_TRUE(region.ok());
  const uint64_t bytes = region->region.size() + 1;
  EXPECT_THAT(read_feature_region(region->region.fd().duplicate().value(), bytes, region->crc32c)
                  .status()
                  .message(),
              HasSubstr("fewer than the " + std::to_string(bytes)));
}

TEST(FeatureBlock, WhatContradictsItselfIsRefused) {
  RegionPool pool("test", kPoolBytes);
  Features features = some_features();
  features.batch.offsets = {0, 4};
  EXPECT_THAT(read_back(write_feature_region(pool, features).value()).status().message(),
              HasSubstr("contradict each other"));
  features = some_features();
  features.top1.pop_back();
  EXPECT_EQ(read_back(write_feature_region(pool, features).value()).status().code(),
            StatusCode::kDataLoss);
}

}  // namespace
}  // namespace percheron
