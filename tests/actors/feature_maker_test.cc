#include "actors/feature_maker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

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

// The sound one beside it is finished as ever; the device does what is left of the other.
TEST_F(FeatureMakerTest, FailingSampleOfAPassUnderWayIsLeftOutByTheDevice) {
  const MicroBatch sound = pack({1, 2}, 0), failing = pack({3, kPoisoned, 4}, 0);
  TargetPlace& place = parts_->targets[0];
  std::unique_ptr<FeaturesUnderWay> first, second;
  ASSERT_TRUE(place.worker
                  ->run([&](Context& context) -> Status {
                    PERCHERON_ASSIGN_OR_RETURN(first, place.maker->begin(context, failing));
                    PERCHERON_ASSIGN_OR_RETURN(second, place.maker->begin(context, sound));
                    return ok_status();
                  })
                  .ok());
  const auto failed = first->finish(), made = second->finish();
  ASSERT_TRUE(failed.ok() && made.ok());
  EXPECT_FALSE(*failed) << "it can't be made without the device";
  ASSERT_TRUE(*made);
  EXPECT_EQ((*made)->computed_tokens, sound.tokens());
  MadeFeatures again;
  ASSERT_TRUE(place.worker
                  ->run([&](Context& context) -> Status {
                    PERCHERON_ASSIGN_OR_RETURN(again, first->again(context));
                    return ok_status();
                  })
                  .ok());
  EXPECT_EQ(again.features->batch.sample_ids, (std::vector<uint64_t>{3, 4}));
  EXPECT_EQ(again.features->hidden_states, make(pack({3, 4}, 1))->hidden_states);
  EXPECT_EQ(parts_->quarantine->count(), 1);
}

/// Makes what another makes, and finishes one only when the next has begun, or there is no next.
class OverlappingMaker final : public FeatureMaker {
 public:
  struct Log {
    std::mutex mutex;
    std::condition_variable changed;
    int64_t begun = 0, finished = 0, in_flight_most = 0;
    int64_t total = 0;
    int64_t alone = 0;  // that were finished without a next one, though there was one
  };

  OverlappingMaker(std::unique_ptr<FeatureMaker> inner, Log& log)
      : inner_(std::move(inner)), log_(log) {}

  Result<std::unique_ptr<FeaturesUnderWay>> begin(Context& context, MicroBatch batch) override {
    PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<FeaturesUnderWay> made,
                               inner_->begin(context, std::move(batch)));
    const std::lock_guard lock(log_.mutex);
    const int64_t number = log_.begun++;
    log_.in_flight_most = std::max(log_.in_flight_most, log_.begun - log_.finished);
    log_.changed.notify_all();
    return std::unique_ptr<FeaturesUnderWay>(
        std::make_unique<UnderWay>(std::move(made), log_, number));
  }

 private:
  class UnderWay final : public FeaturesUnderWay {
   public:
    UnderWay(std::unique_ptr<FeaturesUnderWay> inner, Log& log, int64_t number)
        : inner_(std::move(inner)), log_(log), number_(number) {}
    void wait_pass() override { inner_->wait_pass(); }
    Result<std::optional<MadeFeatures>> finish() override {
      {
        std::unique_lock lock(log_.mutex);
        const bool followed = log_.changed.wait_for(lock, std::chrono::seconds(5), [&] {
          return log_.begun > number_ + 1 || number_ + 1 == log_.total;
        });
        log_.alone += followed ? 0 : 1;
        ++log_.finished;
      }
      return inner_->finish();
    }
    Result<MadeFeatures> again(Context& context) override { return inner_->again(context); }

   private:
    const std::unique_ptr<FeaturesUnderWay> inner_;
    Log& log_;
    const int64_t number_;
  };

  const std::unique_ptr<FeatureMaker> inner_;
  Log& log_;
};

// What follows a pass (copies, checks, publication) once held up the next one.
TEST(TargetActor, BeginsTheNextPassBeforeTheOneBeforeIsFinishedAndNeverAThird) {
  const proto::Run run = make_tiny_run("overlap", {.samples = 16, .epochs = 1});
  const std::atomic<int> none{0};
  RecordingObserver observer;
  const RunEnvironment environment{system_files(), system_clock(), observer, none};
  const auto setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  auto parts = make_run_parts(*setup, environment);
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  OverlappingMaker::Log log;
  log.total = (*setup)->steps.micro_batches(0);
  TargetPlace& place = (*parts)->targets[0];
  place.maker = std::make_unique<OverlappingMaker>(std::move(place.maker), log);
  const Result<RunSummary> summary = run_actors(**parts, environment);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_GT(log.total, 3);
  EXPECT_EQ(log.begun, log.total);
  EXPECT_EQ(log.alone, 0);
  EXPECT_EQ(log.in_flight_most, 2);
}

}  // namespace
}  // namespace percheron
