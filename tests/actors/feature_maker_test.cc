#include "actors/feature_maker.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/actors/tiny_run.h"

namespace percheron {
namespace {

constexpr uint64_t kPoisoned = 5;  // as TinyOptions::poisoned says

/// A target, a cache and data in which sample 5 has states that are not finite.
class FeatureMakerTest : public testing::Test {
 protected:
  void SetUp() override {
    TinyOptions options{.held_out = 7};
    options.poisoned = 1;
    proto::Run run = make_tiny_run("feature_maker", options);
    run.mutable_features()->set_dtype(proto::Features::BF16);
    run.mutable_features()->set_cache_memory_bytes_max(100 << 20);
    const auto setup = resolve_run(run, system_files());
    ASSERT_TRUE(setup.ok()) << setup.status().message();
    auto parts = make_run_parts(
        *setup, RunEnvironment{system_files(), system_clock(), observer_, no_signals_});
    ASSERT_TRUE(parts.ok()) << parts.status().message();
    parts_ = std::move(parts).value();
  }

  MicroBatch pack(const std::vector<uint64_t>& samples, int64_t epoch) const {
    const TokenDataset& train = *parts_->setup->data.train;
    MicroBatch batch;
    batch.id = {epoch, 0};
    batch.offsets = {0};
    for (const uint64_t sample : samples) {
      const auto tokens = train.tokens(static_cast<int64_t>(sample));
      const auto mask = train.mask(static_cast<int64_t>(sample));
      batch.token_ids.insert(batch.token_ids.end(), tokens.begin(), tokens.end());
      batch.loss_mask.insert(batch.loss_mask.end(), mask.begin(), mask.end());
      batch.offsets.push_back(static_cast<int32_t>(batch.tokens()));
      batch.sample_ids.push_back(sample);
    }
    return batch;
  }

  FeaturesPtr make(const MicroBatch& batch) { return make_counted(batch).features; }

  MadeFeatures make_counted(const MicroBatch& batch) {
    MadeFeatures made;
    TargetPlace& place = parts_->targets[0];
    const Status status = place.worker->run([&](Context& context) -> Status {
      PERCHERON_ASSIGN_OR_RETURN(made, place.maker->make(context, batch));
      return ok_status();
    });
    EXPECT_TRUE(status.ok()) << status.message();
    return made;
  }

  static bool any_supervised(const Features& features) {
    const std::vector<uint8_t>& mask = features.batch.loss_mask;
    return std::find(mask.begin(), mask.end(), 1) != mask.end();
  }

  const std::atomic<int> no_signals_{0};
  RecordingObserver observer_;
  std::unique_ptr<RunParts> parts_;
};

// Zeros were once kept for the sample, and trained on in the next epoch with the data's loss mask.
TEST_F(FeatureMakerTest, PackWhoseOnlySampleFailsTeachesNothingInAnyEpoch) {
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    const MicroBatch batch = pack({kPoisoned}, epoch);
    const FeaturesPtr features = make(batch);
    ASSERT_NE(features, nullptr);
    EXPECT_FALSE(any_supervised(*features)) << "epoch " << epoch;
    EXPECT_EQ(parts_->cache->counters().samples, 0);
    EXPECT_EQ(parts_->cache->missing_documents(batch).size(), 1u);
  }
  EXPECT_EQ(parts_->quarantine->count(), 1);
}

TEST_F(FeatureMakerTest, FailingSampleIsLeftOutOfAPackWhoseRestIsCached) {
  const FeaturesPtr alone = make(pack({1, 2}, 0));
  ASSERT_NE(alone, nullptr);
  const FeaturesPtr features = make(pack({1, kPoisoned, 2}, 1));
  ASSERT_NE(features, nullptr);
  EXPECT_EQ(features->batch.sample_ids, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(features->batch.loss_mask, alone->batch.loss_mask);
  EXPECT_EQ(features->hidden_states, alone->hidden_states);
  const FeaturesPtr mixed = make(pack({3, kPoisoned, 2}, 1));
  ASSERT_NE(mixed, nullptr);
  EXPECT_EQ(mixed->batch.sample_ids, (std::vector<uint64_t>{3, 2}));
  EXPECT_EQ(parts_->cache->counters().samples, 3);
}

// The rate of targets once counted what came from the cache: a million tokens a second.
TEST_F(FeatureMakerTest, TokensFromTheCacheAreNotCountedAsComputed) {
  const MicroBatch batch = pack({1, 2}, 0);
  EXPECT_EQ(make_counted(batch).computed_tokens, batch.tokens());
  EXPECT_EQ(make_counted(batch).computed_tokens, 0);
  EXPECT_EQ(make_counted(pack({1, 3}, 1)).computed_tokens, pack({3}, 1).tokens());
}

}  // namespace
}  // namespace percheron
