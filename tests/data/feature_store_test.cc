#include "data/feature_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "base/random.h"

namespace percheron {
namespace {

using testing::HasSubstr;

constexpr FeatureShape kShape = {DType::kBf16, 3, 4, false, false};

FeaturesPtr make_features(MicroBatchId id, int64_t tokens) {
  auto features = std::make_shared<Features>();
  features->batch.id = id;
  features->batch.token_ids.resize(static_cast<size_t>(tokens));
  features->batch.loss_mask.resize(static_cast<size_t>(tokens));
  features->batch.offsets = {0, static_cast<int32_t>(tokens)};
  features->batch.sample_ids = {0};
  features->slots = kShape.slots;
  features->hidden_size = kShape.hidden_size;
  features->hidden_states.resize(kShape.hidden_bytes(tokens));
  return features;
}

const size_t kBytes = kShape.bytes(10, 1);  // one micro-batch of these tests

std::unique_ptr<FeatureStore> make_store(size_t micro_batches, size_t step) {
  return std::move(FeatureStore::make({micro_batches * kBytes, step * kBytes})).value();
}

// Reserves and publishes.
Status put(FeatureStore& store, MicroBatchId id) {
  PERCHERON_RETURN_IF_ERROR(store.try_reserve(id, kBytes));
  return store.publish(make_features(id, 10));
}

TEST(FeatureShape, PredictsTheBytesOfFeatures) {
  EXPECT_EQ(kBytes, make_features({0, 0}, 10)->bytes());
  Features with_top1 = *make_features({0, 0}, 10);
  with_top1.top1.resize(10);
  EXPECT_EQ(with_top1.shape().bytes(10, 1), with_top1.bytes());
}

TEST(FeatureStore, RefusesALimitBelowOneStep) {
  const auto store = FeatureStore::make({100, 101});
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(store.status().message(), HasSubstr("features.bytes_max"));
}

TEST(FeatureStore, GivesWhatWasPublished) {
  const auto store = make_store(4, 2);
  const FeaturesPtr features = make_features({0, 3}, 10);
  ASSERT_TRUE(store->try_reserve({0, 3}, kBytes).ok());
  EXPECT_EQ(store->get({0, 3}), nullptr);
  ASSERT_TRUE(store->publish(features).ok());
  EXPECT_EQ(store->get({0, 3}).get(), features.get());
  EXPECT_EQ(store->get({0, 2}), nullptr);
  EXPECT_EQ(store->counters().published_bytes, kBytes);
  EXPECT_EQ(store->counters().reserved_bytes, 0u);
  store->release({0, 3});
  EXPECT_EQ(store->get({0, 3}), nullptr);
  EXPECT_EQ(store->counters().bytes(), 0u);
}

TEST(FeatureStore, ReservesBeforeItPublishesAndNeverBeyondTheLimit) {
  const auto store = make_store(2, 2);
  store->open_step({0, 0}, 2);
  EXPECT_EQ(store->publish(make_features({0, 0}, 10)).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(store->try_reserve({0, 0}, kBytes).ok());
  EXPECT_EQ(store->try_reserve({0, 0}, kBytes).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(store->try_reserve({0, 1}, kBytes).ok());
  EXPECT_EQ(store->try_reserve({0, 2}, 1).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(store->publish(make_features({0, 0}, 11)).code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(store->publish(make_features({0, 0}, 9)).ok());  // The rest is given back.
  EXPECT_LT(store->counters().bytes(), 2 * kBytes);
  EXPECT_EQ(store->publish(make_features({0, 0}, 9)).code(), StatusCode::kFailedPrecondition);
  store->release({0, 1});  // An unused reservation.
  EXPECT_EQ(store->counters().reserved_bytes, 0u);
  EXPECT_EQ(store->counters().refused_total, 1);
}

TEST(FeatureStore, LaterStepsCannotTakeTheOpenStepsRoom) {
  const auto store = make_store(5, 2);
  store->open_step({0, 0}, 2);
  // Later steps fill what is left beside one step: three micro-batches.
  for (int64_t index = 2; index < 5; ++index) ASSERT_TRUE(put(*store, {0, index}).ok());
  EXPECT_EQ(store->try_reserve({0, 5}, kBytes).code(), StatusCode::kResourceExhausted);
  // The open step's come last, as after the death of the node that had them, and fit.
  ASSERT_TRUE(put(*store, {0, 0}).ok());
  ASSERT_TRUE(put(*store, {0, 1}).ok());
  EXPECT_EQ(store->counters().bytes(), 5 * kBytes);
  store->release_step({0, 0}, 2);
  store->open_step({0, 2}, 2);
  EXPECT_EQ(store->get({0, 1}), nullptr);
  ASSERT_TRUE(put(*store, {0, 5}).ok());
  EXPECT_EQ(store->try_reserve({1, 2}, kBytes).code(), StatusCode::kOk)
      << "4 is later, 2 and 3 open";
}

TEST(FeatureStore, AnyOpenStepFindsRoomWhateverCameBefore) {
  const uint64_t seed = 77;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (int trial = 0; trial < 200; ++trial) {
    const auto step = static_cast<int64_t>(1 + random.below(4));
    const auto store = make_store(static_cast<size_t>(step) + random.below(6), step);
    for (int64_t s = 0; s < 8; ++s) {
      store->open_step({0, s * step}, step);
      // A random part of what comes next is made on this node, as far as there is room.
      for (int64_t index = (s + 1) * step; index < (s + 3) * step; ++index) {
        if (random.below(2) == 0 && store->get({0, index}) == nullptr)
          (void)put(*store, {0, index});
      }
      for (int64_t index = s * step; index < (s + 1) * step; ++index) {
        if (store->get({0, index}) == nullptr) {
          ASSERT_TRUE(put(*store, {0, index}).ok());
        }
      }
      store->release_step({0, s * step}, step);
    }
  }
}

// The room for a later step, worked out anew from all that is there, whatever came before.
TEST(FeatureStore, KnowsTheRoomOfLaterStepsAfterAnyHistory) {
  constexpr size_t kMax = 12 * 64, kStep = 4 * 64;
  for (uint64_t world = 0; world < 50; ++world) {
    SCOPED_TRACE(world);
    Random random = Random::keyed(3, "room", world);
    const auto store = std::move(FeatureStore::make({kMax * kBytes, kStep * kBytes})).value();
    std::map<MicroBatchId, size_t> held;
    MicroBatchId open;
    store->open_step(open, 4);
    for (int move = 0; move < 400; ++move) {
      const MicroBatchId id{0, static_cast<int64_t>(random.below(24))};
      const bool of_open = open.index <= id.index && id.index < open.index + 4;
      const size_t bytes = (1 + random.below(64)) * kBytes;
      switch (random.below(5)) {
        case 0:
          open.index = static_cast<int64_t>(random.below(20));
          store->open_step(open, 4);
          continue;
        case 1:
          store->release(id);
          held.erase(id);
          continue;
        case 2:  // It takes less than was reserved.
          if (held.count(id) != 0 && store->publish(make_features(id, 10)).ok()) {
            held[id] = kBytes;
          }
          continue;
        default: break;
      }
      if (held.count(id) != 0) continue;
      size_t all = 0, later = 0;
      for (const auto& [other, its_bytes] : held) {
        all += its_bytes;
        later += open.index <= other.index && other.index < open.index + 4 ? 0 : its_bytes;
      }
      const bool fits =
          all + bytes <= kMax * kBytes && (of_open || later + bytes <= (kMax - kStep) * kBytes);
      ASSERT_EQ(store->try_reserve(id, bytes).ok(), fits) << "move " << move;
      if (fits) held[id] = bytes;
    }
  }
}

TEST(FeatureStore, BytesCountUntilTheLastReaderLetsGo) {
  auto store = make_store(1, 1);
  store->open_step({0, 0}, 2);
  ASSERT_TRUE(put(*store, {0, 0}).ok());
  FeaturesPtr reader = store->get({0, 0});
  FeaturesPtr second = reader;
  store->release({0, 0});
  EXPECT_EQ(store->counters().lingering_bytes, kBytes);
  EXPECT_FALSE(store->try_reserve({0, 1}, kBytes).ok());
  reader.reset();
  EXPECT_FALSE(store->try_reserve({0, 1}, kBytes).ok());
  EXPECT_EQ(second->batch.tokens(), 10);
  second.reset();
  EXPECT_TRUE(put(*store, {0, 1}).ok());
  reader = store->get({0, 1});
  store.reset();  // A reader may outlive the store.
  EXPECT_EQ(reader->batch.tokens(), 10);
}

TEST(FeatureStore, KeepsItsLimitAmongThreads) {
  const auto store = make_store(6, 2);
  std::atomic<int64_t> made{0}, read{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 500; ++i) {
        const MicroBatchId id = {t, i};
        if (!store->try_reserve(id, kBytes).ok()) continue;
        if (i % 7 == 0) {
          store->release(id);
          continue;
        }
        // The store itself checks the limit at every change.
        if (store->publish(make_features(id, 10)).ok()) ++made;
        if (const FeaturesPtr features = store->get(id); features != nullptr) ++read;
        store->release(id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made.load(), read.load());
  const FeatureStoreCounters counters = store->counters();
  EXPECT_EQ(counters.bytes(), 0u);
  EXPECT_EQ(counters.published_total, made.load());
  EXPECT_LE(counters.peak_bytes, 6 * kBytes);
}

}  // namespace
}  // namespace percheron
