#include "actors/train.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/actors/tiny_run.h"

namespace percheron {
namespace {

double relative(double a, double b) { return std::abs(a - b) / std::max(1e-12, std::abs(a)); }

TEST(Train, OneTargetAndOneTrainerLearnAndLeaveACheckpoint) {
  const proto::Run run = make_tiny_run("one_to_one", {.held_out = 6, .epochs = 6});
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(summary->steps, summary->steps_total);
  EXPECT_EQ(summary->epochs, 6);
  ASSERT_EQ(static_cast<int64_t>(observer.steps().size()), summary->steps);
  EXPECT_LT(observer.steps().back().loss, observer.steps().front().loss);
  ASSERT_EQ(observer.checkpoints().size(), 2u) << "before the first step and at the end";
  EXPECT_EQ(observer.checkpoints()[0].step, 0);
  EXPECT_EQ(observer.checkpoints()[1].step, summary->steps);
  ASSERT_EQ(observer.evaluations().size(), 2u);
  for (const EvaluationReport& report : observer.evaluations()) {
    ASSERT_EQ(report.acceptance_length_walk.size(), 1u);
    EXPECT_GE(report.acceptance_length_walk[0], 1.0);
    EXPECT_LE(report.acceptance_length_walk[0], 4.0);
  }
  EXPECT_EQ(observer.ends(), 1);
  EXPECT_FALSE(summary->latest_checkpoint.empty());
  EXPECT_LE(summary->pool_bytes_peak, run.features().bytes_max());
}

TEST(Train, EveryTopologyTrainsTheSameStepsToTheSameLosses) {
  std::vector<StepReport> expected;
  for (const auto& [targets, trainers] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {1, 2}, {3, 2}, {5, 3}}) {
    SCOPED_TRACE(testing::Message() << targets << " targets, " << trainers << " trainers");
    proto::Run run = make_tiny_run("topology", {.epochs = 4, .micro_batches_per_step = 3});
    place(run, targets, trainers);
    RecordingObserver observer;
    const Result<RunSummary> summary = train_tiny(run, observer);
    ASSERT_TRUE(summary.ok()) << summary.status().message();
    EXPECT_EQ(summary->epochs, 4);
    if (expected.empty()) expected = observer.steps();
    ASSERT_EQ(observer.steps().size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(observer.steps()[i].tokens, expected[i].tokens) << "step " << i;
      EXPECT_EQ(observer.steps()[i].supervised, expected[i].supervised) << "step " << i;
      if (i < 20) {
        EXPECT_LT(relative(expected[i].loss, observer.steps()[i].loss), 1e-5) << "step " << i;
      }
    }
  }
}

// SpecForge c3ecb528 (C49): 5 targets, 3 trainers, 17 samples; nothing is dropped, nothing hangs.
TEST(Train, FiveTargetsAndThreeTrainersFinishSeventeenSamples) {
  proto::Run run = make_tiny_run("odd", {.samples = 17, .epochs = 2, .micro_batches_per_step = 2});
  run.mutable_data()->set_token_budget(48);  // about one sample each
  place(run, 5, 3);
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(summary->steps, summary->steps_total);
  EXPECT_EQ(summary->epochs, 2);
}

TEST(Train, DflashTrainsThroughTheSameActors) {
  proto::Run run = make_tiny_run("dflash", {.held_out = 4, .epochs = 3, .dflash = true});
  place(run, 2, 2);
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_LT(observer.steps().back().loss, observer.steps().front().loss);
}

TEST(Train, ByteLimitOfOneStepIsEnoughAndNeverExceeded) {
  proto::Run run = make_tiny_run("tight", {.epochs = 2});
  const auto setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  run.mutable_features()->set_bytes_max((*setup)->step_bytes_max);
  place(run, 3, 2);
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_GT(summary->pool_bytes_peak, 0u);
  EXPECT_LE(summary->pool_bytes_peak, (*setup)->step_bytes_max);

  run.mutable_features()->set_bytes_max((*setup)->step_bytes_max - 1);
  const auto refused = resolve_run(run, system_files());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("features.bytes_max"), std::string::npos);
}

TEST(Train, FeaturesOfTheFirstEpochAreKeptForTheOthers) {
  proto::Run run = make_tiny_run("cached", {.epochs = 3});
  RecordingObserver plain, cached;
  ASSERT_TRUE(train_tiny(run, plain).ok());
  run.mutable_features()->set_cache_memory_bytes_max(100 << 20);
  run.mutable_output()->set_directory(run.output().directory() + "_cached");
  const Result<RunSummary> summary = train_tiny(run, cached);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  ASSERT_EQ(plain.steps().size(), cached.steps().size());
  for (size_t i = 0; i < plain.steps().size(); ++i) {
    EXPECT_EQ(plain.steps()[i].loss, cached.steps()[i].loss) << "step " << i;
  }
  EXPECT_GT(cached.steps().back().cached_bytes, 0u);
}

// SpecForge d84778a1 (C40, C51): a poisoned sample is set aside, counted, and the run goes on.
TEST(Train, SampleWithStatesThatAreNotFiniteIsSetAside) {
  TinyOptions options{.held_out = 3, .epochs = 2};
  options.poisoned = 1;
  proto::Run run = make_tiny_run("poison", options);
  run.mutable_features()->set_dtype(proto::Features::BF16);
  run.mutable_features()->set_cache_memory_bytes_max(100 << 20);
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(counter(*summary, "samples_quarantined"), 1);
  EXPECT_TRUE(observer.heard("sample 5 is set aside"));
  EXPECT_EQ(summary->steps, summary->steps_total);

  options.poisoned = 3;
  run = make_tiny_run("poisoned", options);
  run.mutable_features()->set_dtype(proto::Features::BF16);
  const Result<RunSummary> refused = train_tiny(run, observer);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace percheron
