#include "data/feature_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "base/hash.h"
#include "base/random.h"
#include "data/epoch_plan.h"
#include "tests/base/fault_file_system.h"

namespace percheron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Fingerprint fingerprint(const std::string& target) {
  Fingerprint result;
  result.set("target_hash", target);
  result.set("capture", "2,16,29");
  return result;
}

// Samples of these lengths in the order of `samples`; tokens are a function of the sample alone.
MicroBatch make_batch(const std::vector<uint64_t>& samples) {
  MicroBatch batch;
  batch.offsets = {0};
  for (const uint64_t sample : samples) {
    for (uint64_t t = 0; t < 1 + sample % 5; ++t) {
      batch.token_ids.push_back(static_cast<uint32_t>(sample * 10 + t));
      batch.loss_mask.push_back(t % 2);
    }
    batch.offsets.push_back(static_cast<int32_t>(batch.tokens()));
    batch.sample_ids.push_back(sample);
  }
  return batch;
}

// What a target would make: a function of each token and its place in its sample.
Features make_features(const MicroBatch& batch, const FeatureShape& shape,
                       const std::string& digest) {
  Features features;
  features.batch = batch;
  features.dtype = shape.dtype;
  features.slots = shape.slots;
  features.hidden_size = shape.hidden_size;
  features.has_last = shape.has_last;
  features.fingerprint = digest;
  const size_t row_bytes = shape.hidden_bytes(1);
  for (const uint32_t token : batch.token_ids) {
    for (size_t b = 0; b < row_bytes; ++b)
      features.hidden_states.push_back(static_cast<std::byte>(token * 31 + b));
    if (shape.has_top1) features.top1.push_back(static_cast<int32_t>(token) - 1);
  }
  return features;
}

class FeatureCacheTest : public testing::Test {
 protected:
  FeatureCacheOptions options(size_t memory, size_t disk) const {
    FeatureCacheOptions options;
    options.memory_bytes_max = memory;
    options.disk_bytes_max = disk;
    options.directory = "out/cache";
    options.shape = shape_;
    options.fingerprint = fingerprint("t");
    return options;
  }
  std::unique_ptr<FeatureCache> open(size_t memory, size_t disk) {
    auto cache = FeatureCache::open(files_, options(memory, disk));
    EXPECT_TRUE(cache.ok()) << cache.status().message();
    return std::move(cache).value();
  }
  Features features_of(const std::vector<uint64_t>& samples) const {
    return make_features(make_batch(samples), shape_, fingerprint("t").digest());
  }
  void expect_hit(FeatureCache& cache, const std::vector<uint64_t>& samples) {
    const FeaturesPtr features = cache.assemble(make_batch(samples), nullptr);
    ASSERT_NE(features, nullptr);
    const Features expected = features_of(samples);
    EXPECT_EQ(features->hidden_states, expected.hidden_states);
    EXPECT_EQ(features->top1, expected.top1);
    EXPECT_EQ(features->fingerprint, expected.fingerprint);
    EXPECT_EQ(features->shape(), expected.shape());
    EXPECT_EQ(features->batch.token_ids, expected.batch.token_ids);
  }

  FaultFileSystem files_;
  FeatureShape shape_ = {DType::kBf16, 2, 3, true, true};
};

TEST_F(FeatureCacheTest, AssemblesOtherPacksOfTheSameSamplesToTheBit) {
  const auto cache = open(1 << 20, 0);
  ASSERT_TRUE(cache->insert(features_of({3, 1, 4})).ok());
  ASSERT_TRUE(cache->insert(features_of({9, 2})).ok());
  expect_hit(*cache, {2, 4});
  expect_hit(*cache, {1, 9, 3});
  EXPECT_EQ(cache->assemble(make_batch({1, 5}), nullptr), nullptr);
  EXPECT_THAT(cache->missing_documents(make_batch({5, 1, 6})), ElementsAre(0, 2));
  EXPECT_EQ(cache->counters().samples, 5);
  EXPECT_EQ(cache->counters().disk_bytes, 0u);
}

TEST_F(FeatureCacheTest, WorksForEveryShape) {
  for (const int64_t slots : {1, 3, 5}) {  // speculators#597: hard-coded three
    for (const bool top1 : {false, true}) {
      for (const DType dtype : {DType::kBf16, DType::kF32}) {
        shape_ = {dtype, slots, 4, false, top1};
        const auto cache = open(1 << 20, 0);
        ASSERT_TRUE(cache->insert(features_of({3, 1})).ok());
        expect_hit(*cache, {1, 3});
      }
    }
  }
}

TEST_F(FeatureCacheTest, MergesFreshFeaturesOfWhatIsMissing) {
  const auto cache = open(1 << 20, 0);
  ASSERT_TRUE(cache->insert(features_of({3, 1})).ok());
  const MicroBatch batch = make_batch({4, 3, 2, 1});
  const std::vector<int32_t> missing = cache->missing_documents(batch);
  EXPECT_THAT(missing, ElementsAre(0, 2));
  const Features fresh =
      make_features(select_documents(batch, missing), shape_, fingerprint("t").digest());
  const FeaturesPtr merged = cache->assemble(batch, &fresh);
  ASSERT_NE(merged, nullptr);
  EXPECT_EQ(merged->hidden_states, features_of({4, 3, 2, 1}).hidden_states);
  EXPECT_EQ(merged->top1, features_of({4, 3, 2, 1}).top1);
  EXPECT_EQ(merged->batch.loss_mask, batch.loss_mask);
  EXPECT_EQ(cache->assemble(make_batch({4, 8}), &fresh), nullptr);

  Features closed = fresh;
  std::fill(closed.batch.loss_mask.begin(), closed.batch.loss_mask.end(), uint8_t{0});
  const FeaturesPtr masked = cache->assemble(batch, &closed);
  ASSERT_NE(masked, nullptr);
  for (const auto& [document, open] : {std::pair(0, false), {1, true}, {2, false}, {3, true}}) {
    for (int32_t row = batch.offsets[document]; row < batch.offsets[document + 1]; ++row)
      EXPECT_EQ(masked->batch.loss_mask[row], open ? batch.loss_mask[row] : 0) << row;
  }
}

TEST_F(FeatureCacheTest, ASampleWithOtherTokensIsNotAHit) {
  const auto cache = open(1 << 20, 0);
  ASSERT_TRUE(cache->insert(features_of({3})).ok());
  MicroBatch batch = make_batch({3});
  batch.token_ids[1] ^= 1;
  EXPECT_THAT(cache->missing_documents(batch), ElementsAre(0));
  EXPECT_EQ(cache->assemble(batch, nullptr), nullptr);
  const int32_t cut_offsets[] = {0, 2};  // cut by a smaller token budget
  batch = make_batch({3});
  batch.token_ids.resize(2);
  batch.loss_mask.resize(2);
  batch.offsets.assign(std::begin(cut_offsets), std::end(cut_offsets));
  EXPECT_THAT(cache->missing_documents(batch), ElementsAre(0));
}

TEST_F(FeatureCacheTest, RefusesFeaturesOfAnotherRunOrShape) {
  const auto cache = open(1 << 20, 0);
  EXPECT_EQ(cache->insert(make_features(make_batch({1}), shape_, "other")).code(),
            StatusCode::kFailedPrecondition);
  FeatureShape other = shape_;
  other.has_top1 = false;
  EXPECT_EQ(cache->insert(make_features(make_batch({1}), other, fingerprint("t").digest())).code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(FeatureCacheTest, FillsMemoryThenDiskThenKeepsWhatItHas) {
  const auto cache = open(1000, 2000);
  for (uint64_t sample = 0; sample < 100; ++sample)
    ASSERT_TRUE(cache->insert(features_of({sample})).ok());
  const FeatureCacheCounters counters = cache->counters();
  EXPECT_LE(counters.memory_bytes, 1000u);
  EXPECT_LE(counters.disk_bytes, 2000u);
  EXPECT_GT(counters.memory_bytes, 500u);
  EXPECT_GT(counters.disk_bytes, 1500u);
  EXPECT_GT(counters.rejected, 0);
  EXPECT_EQ(counters.samples + counters.rejected, 100);
  // Two epochs in fresh orders: exactly what was kept is found again, nothing was evicted.
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    int64_t hits = 0;
    for (uint64_t i = 0; i < 100; ++i) {
      const uint64_t sample = (i * 37 + epoch) % 100;
      if (!cache->missing_documents(make_batch({sample})).empty()) continue;
      expect_hit(*cache, {sample});
      ++hits;
    }
    EXPECT_EQ(hits, counters.samples);
  }
}

TEST_F(FeatureCacheTest, FindsItsDiskPartAgainAfterARestart) {
  {
    const auto cache = open(0, 1 << 20);
    ASSERT_TRUE(cache->insert(features_of({1, 2, 3})).ok());
  }
  {
    const auto cache = open(0, 1 << 20);
    EXPECT_EQ(cache->counters().samples, 3);
    expect_hit(*cache, {2, 1});
    ASSERT_TRUE(cache->insert(features_of({4, 2})).ok());  // into a second file
    expect_hit(*cache, {4, 3});
  }
  EXPECT_THAT(*files_.list("out/cache"),
              ElementsAre(".lock", "features-00000.cache", "features-00001.cache"));
  const auto cache = open(0, 1 << 20);
  expect_hit(*cache, {1, 2, 3, 4});
}

TEST_F(FeatureCacheTest, RefusesOrClearsFilesOfAnotherRun) {
  ASSERT_TRUE(open(0, 1 << 20)->insert(features_of({1, 2})).ok());
  FeatureCacheOptions other = options(0, 1 << 20);
  other.fingerprint = fingerprint("u");
  const auto refused = FeatureCache::open(files_, other);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("target_hash 't'"));
  FeatureCacheOptions other_shape = options(0, 1 << 20);
  other_shape.shape.slots = 5;
  EXPECT_THAT(FeatureCache::open(files_, other_shape).status().message(),
              HasSubstr("another shape"));
  other.on_foreign = FeatureCacheOptions::OnForeign::kClear;
  const auto cleared = FeatureCache::open(files_, other);
  ASSERT_TRUE(cleared.ok());
  EXPECT_EQ((*cleared)->counters().foreign, 1);
  EXPECT_EQ((*cleared)->counters().samples, 0);
  EXPECT_THAT(*files_.list("out/cache"), ElementsAre(".lock"));
}

TEST_F(FeatureCacheTest, OneRunAtATimeUsesADirectory) {
  auto cache = open(0, 1 << 20);
  const auto second = FeatureCache::open(files_, options(0, 1 << 20));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr("out/cache is in use"));
  EXPECT_TRUE(FeatureCache::open(files_, options(1 << 20, 0)).ok()) << "without a disk part";
  cache.reset();
  EXPECT_TRUE(FeatureCache::open(files_, options(0, 1 << 20)).ok());
}

TEST_F(FeatureCacheTest, KeepsAFileThatItDidNotMake) {
  const auto cache = open(0, 1 << 20);
  const std::string path = "out/cache/features-00000.cache";
  ASSERT_TRUE(write_text_atomically(files_, path, "somebody maps this").ok());
  ASSERT_TRUE(cache->insert(features_of({1})).ok());
  EXPECT_EQ(cache->counters().rejected, 1);
  EXPECT_EQ(*files_.read_text(path), "somebody maps this");
}

TEST_F(FeatureCacheTest, RemovesOnlyWhatEndsWithinItsHeader) {
  ASSERT_TRUE(open(0, 1 << 20)->insert(features_of({4, 2})).ok());
  const std::string path = "out/cache/features-00000.cache";
  const std::string whole = *files_.read_text(path);
  std::string other_version = whole, damaged = whole;
  other_version[7] = '2';
  damaged[20] = static_cast<char>(damaged[20] ^ 1);  // in the header's text
  for (const std::string& text : {other_version, damaged, std::string(64, 'x')}) {
    ASSERT_TRUE(write_text_atomically(files_, path, text).ok());
    const auto refused = FeatureCache::open(files_, options(0, 1 << 20));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(refused.status().message(), HasSubstr(path));
    EXPECT_EQ(*files_.read_text(path), text) << "it may be somebody's";
    FeatureCacheOptions own = options(0, 1 << 20);
    own.on_foreign = FeatureCacheOptions::OnForeign::kClear;
    EXPECT_TRUE(FeatureCache::open(files_, own).ok());
    EXPECT_FALSE(files_.exists(path));
  }
  ASSERT_TRUE(write_text_atomically(files_, path, whole.substr(0, 20)).ok());
  EXPECT_TRUE(FeatureCache::open(files_, options(0, 1 << 20)).ok());
  EXPECT_FALSE(files_.exists(path));
}

TEST_F(FeatureCacheTest, ForgetsDamagedRecords) {
  ASSERT_TRUE(open(0, 1 << 20)->insert(features_of({4, 2})).ok());
  std::string bytes = *files_.read_text("out/cache/features-00000.cache");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // in the payload of sample 2
  auto file = files_.create("out/cache/features-00000.cache");
  ASSERT_TRUE((*file)->append(std::as_bytes(std::span(bytes))).ok());
  const auto cache = open(0, 1 << 20);
  EXPECT_EQ(cache->assemble(make_batch({4, 2}), nullptr), nullptr);
  EXPECT_EQ(cache->counters().corrupt, 1);
  EXPECT_THAT(cache->missing_documents(make_batch({4, 2})), ElementsAre(1));
  expect_hit(*cache, {4});
  ASSERT_TRUE(cache->insert(features_of({2})).ok());
  expect_hit(*cache, {4, 2});
}

TEST_F(FeatureCacheTest, ReadsWhatIsWholeOfAFileCutAnywhere) {  // speculators#566
  ASSERT_TRUE(open(0, 1 << 20)->insert(features_of({4, 2, 3})).ok());
  const std::string path = "out/cache/features-00000.cache";
  const std::string whole = *files_.read_text(path);
  int64_t samples_before = 0;
  for (size_t size = 0; size <= whole.size(); ++size) {
    auto file = files_.create(path);
    ASSERT_TRUE((*file)->append(std::as_bytes(std::span(whole.data(), size))).ok());
    const auto cache = open(0, 1 << 20);
    const int64_t samples = cache->counters().samples;
    EXPECT_GE(samples, samples_before);
    samples_before = samples;
    if (samples >= 1) expect_hit(*cache, {4});
    if (samples >= 3) expect_hit(*cache, {3, 2, 4});
    EXPECT_EQ(cache->counters().corrupt, 0);
  }
  EXPECT_EQ(samples_before, 3);
}

TEST_F(FeatureCacheTest, AFullDiskStopsInsertionAndNothingElse) {
  auto cache = open(0, 1 << 20);
  ASSERT_TRUE(cache->insert(features_of({4})).ok());
  files_.fill_disk_after(30);
  ASSERT_TRUE(cache->insert(features_of({3, 2, 1})).ok());
  EXPECT_EQ(cache->counters().samples, 1);
  EXPECT_EQ(cache->counters().rejected, 3);
  files_.free_disk();
  ASSERT_TRUE(cache->insert(features_of({3})).ok());  // Nothing follows the torn record.
  EXPECT_EQ(cache->counters().samples, 1);
  expect_hit(*cache, {4});
  cache.reset();
  const auto again = open(0, 1 << 20);
  EXPECT_EQ(again->counters().samples, 1);
  ASSERT_TRUE(again->insert(features_of({3})).ok());
  expect_hit(*again, {3, 4});
}

TEST_F(FeatureCacheTest, SaysWhenTheDirectoryCannotBeMade) {  // speculators#743: exit 0, no cache
  files_.fail_operation(1, failed_precondition("read-only"));
  EXPECT_FALSE(FeatureCache::open(files_, options(0, 1 << 20)).ok());
}

TEST_F(FeatureCacheTest, ReadsAFileOfTheOperatingSystemWhileItGrows) {
  FileSystem& files = system_files();
  FeatureCacheOptions real = options(0, 1 << 20);
  real.directory = testing::TempDir() + "percheron_feature_cache_test";
  ASSERT_TRUE(files.remove_all(real.directory).ok());
  for (int opening = 0; opening < 2; ++opening) {
    const auto cache = FeatureCache::open(files, real);
    ASSERT_TRUE(cache.ok()) << cache.status().message();
    EXPECT_EQ((*cache)->counters().samples, opening * 100);
    for (uint64_t sample = 0; sample < 100; ++sample) {
      ASSERT_TRUE((*cache)->insert(features_of({sample})).ok());
      expect_hit(**cache, {sample, sample / 2});
    }
  }
  ASSERT_TRUE(files.remove_all(real.directory).ok());
}

TEST_F(FeatureCacheTest, ServesReadersWhileOthersInsert) {
  const auto cache = open(2000, 1 << 20);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 150; ++i) {
        const uint64_t sample = i * 3 + t;
        EXPECT_TRUE(cache->insert(features_of({sample})).ok());
        const uint64_t other = (i * 7 + t) % 450;
        const FeaturesPtr found = cache->assemble(make_batch({sample, other}), nullptr);
        if (found == nullptr) continue;
        EXPECT_EQ(found->hidden_states, features_of({sample, other}).hidden_states);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache->counters().samples, 450);
  EXPECT_EQ(cache->counters().corrupt, 0);
}

}  // namespace
}  // namespace percheron
