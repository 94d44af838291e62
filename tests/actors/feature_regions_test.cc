#include "actors/node/feature_regions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/hash.h"
#include "data/transport/region_pool.h"

namespace percheron {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr pid_t kMaker = 10, kReader = 20, kOther = 30;
constexpr uint64_t kBytes = 5000;

// The daemon's side of what a worker publishes.
class FeatureRegionsTest : public testing::Test {
 protected:
  proto::PublishFeatures published(int64_t index, uint64_t region, int64_t generation = 1) {
    proto::PublishFeatures what;
    what.mutable_key()->set_node("node1");
    what.mutable_key()->set_epoch(0);
    what.mutable_key()->set_index(index);
    what.mutable_key()->set_generation(generation);
    what.mutable_key()->set_bytes(kBytes);
    what.set_region(region);
    return what;
  }
  Status keep(const proto::PublishFeatures& what) {
    return regions_.keep("run", what, kMaker, memory_.fd().duplicate().value());
  }
  void release(int64_t index) {
    proto::ReleaseFeatures what;
    what.set_epoch(0);
    what.set_first(index);
    what.set_count(1);
    regions_.release("run", what);
  }
  // The numbers of the maker's regions that are free by now.
  std::vector<uint64_t> freed() {
    std::vector<uint64_t> numbers;
    for (const FeatureRegions::Freed& it : regions_.take_freed()) {
      EXPECT_EQ(it.maker, kMaker);
      numbers.push_back(it.region);
    }
    return numbers;
  }

  RegionPool pool_{"test", 1 << 20};
  SharedRegion memory_ = pool_.take(kBytes).value();
  FeatureRegions regions_;
};

TEST_F(FeatureRegionsTest, WhatIsReleasedIsFreeAtOnceWhereNobodyReads) {
  ASSERT_TRUE(keep(published(3, 7)).ok());
  EXPECT_EQ(regions_.bytes(), kBytes);
  EXPECT_THAT(freed(), IsEmpty());
  release(3);
  EXPECT_EQ(freed(), std::vector<uint64_t>{7});
  EXPECT_THAT(freed(), IsEmpty()) << "told twice";
  EXPECT_EQ(regions_.bytes(), 0u);
}

TEST_F(FeatureRegionsTest, AReaderKeepsItsRegionUntilItGivesItBack) {
  const proto::PublishFeatures what = published(3, 7);
  ASSERT_TRUE(keep(what).ok());
  ASSERT_TRUE(regions_.lend("run", what.key(), kReader, 1).ok());
  ASSERT_TRUE(regions_.lend("run", what.key(), kReader, 2).ok());
  ASSERT_TRUE(regions_.lend("run", what.key(), kOther, 1).ok());
  release(3);
  regions_.given_back(kReader, 2);
  regions_.given_back(kReader, 99);
  regions_.given_back(kOther, 1);
  EXPECT_THAT(freed(), IsEmpty());
  regions_.given_back(kReader, 1);
  EXPECT_EQ(freed(), std::vector<uint64_t>{7});
}

TEST_F(FeatureRegionsTest, AReaderThatEndsKeepsNothing) {
  const proto::PublishFeatures what = published(3, 7);
  ASSERT_TRUE(keep(what).ok());
  for (const uint64_t request : {1, 2}) {
    ASSERT_TRUE(regions_.lend("run", what.key(), kReader, request).ok());
  }
  release(3);
  regions_.process_ended(kOther);
  EXPECT_THAT(freed(), IsEmpty());
  regions_.process_ended(kReader);
  EXPECT_EQ(freed(), std::vector<uint64_t>{7});
}

TEST_F(FeatureRegionsTest, ATransferKeepsItsRegion) {
  const proto::PublishFeatures what = published(3, 7);
  ASSERT_TRUE(keep(what).ok());
  BulkRegions::Offer offer =
      regions_.offered().find(FeatureRegions::slot("run", {0, 3}), what.key().generation() + 1);
  ASSERT_NE(offer.region, nullptr);
  EXPECT_EQ(offer.bytes, kBytes);
  release(3);
  EXPECT_THAT(freed(), IsEmpty());
  offer.region.reset();
  EXPECT_EQ(freed(), std::vector<uint64_t>{7});
}

TEST_F(FeatureRegionsTest, ANewGenerationFreesTheOlderOne) {
  ASSERT_TRUE(keep(published(3, 7, 1)).ok());
  ASSERT_TRUE(keep(published(3, 8, 2)).ok());
  EXPECT_EQ(freed(), std::vector<uint64_t>{7});
  // A target that was taken for dead comes last.
  ASSERT_TRUE(keep(published(3, 9, 1)).ok());
  EXPECT_EQ(freed(), std::vector<uint64_t>{9});
  EXPECT_EQ(regions_.bytes(), kBytes);
  EXPECT_TRUE(regions_.lend("run", published(3, 8, 2).key(), kReader, 1).ok());
}

TEST_F(FeatureRegionsTest, MemoryThatIsTooSmallIsRefused) {
  proto::PublishFeatures what = published(3, 7);
  what.mutable_key()->set_bytes(memory_.size() + 1);
  const Status kept = keep(what);
  EXPECT_EQ(kept.code(), StatusCode::kDataLoss);
  EXPECT_THAT(kept.message(), HasSubstr("fewer than"));
  EXPECT_EQ(keep(published(3, 7)).code(), StatusCode::kOk);
  EXPECT_EQ(regions_.keep("run", published(4, 8), kMaker, {}).code(), StatusCode::kDataLoss);
}

TEST_F(FeatureRegionsTest, TheEndOfARunFreesAllOfIt) {
  for (const uint64_t i : {1, 2, 3}) {
    ASSERT_TRUE(keep(published(static_cast<int64_t>(i), i)).ok());
  }
  regions_.release_run("another");
  EXPECT_THAT(freed(), IsEmpty());
  regions_.release_run("run");
  EXPECT_EQ(freed(), (std::vector<uint64_t>{1, 2, 3}));
}

// A node that could not be reached for a while hears of later steps only.
TEST_F(FeatureRegionsTest, AStepThatIsReleasedTakesAllBeforeItAlong) {
  const MicroBatchId ids[] = {{-1, 0}, {0, 0}, {0, 3}, {1, 1}, {1, 2}};  // the first is held out
  uint64_t region = 0;
  for (const MicroBatchId& id : ids) {
    proto::PublishFeatures what = published(id.index, ++region);
    what.mutable_key()->set_epoch(id.epoch);
    ASSERT_TRUE(keep(what).ok());
  }
  proto::ReleaseFeatures step;
  step.set_epoch(1);
  step.set_first(1);
  step.set_count(1);
  regions_.release("another", step);
  EXPECT_THAT(freed(), IsEmpty());
  regions_.release("run", step);
  EXPECT_EQ(freed(), (std::vector<uint64_t>{2, 3, 4}));
  EXPECT_EQ(regions_.bytes(), 2 * kBytes) << "held-out data and later steps stay";
}

TEST_F(FeatureRegionsTest, CountsWhoseMemoryWasUsedBefore) {
  proto::PublishFeatures what = published(3, 7);
  ASSERT_TRUE(keep(what).ok());
  what = published(4, 8);
  what.set_used_before(true);
  ASSERT_TRUE(keep(what).ok());
  EXPECT_EQ(regions_.counts().in_new_memory, 1);
  EXPECT_EQ(regions_.counts().in_used_memory, 1);
}

}  // namespace
}  // namespace percheron
