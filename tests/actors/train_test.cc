#include "actors/train.h"

#include <gtest/gtest.h>

#include <cmath>
#include <future>

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

/// Never answers until it is let go.
class HangingMaker final : public FeatureMaker {
 public:
  explicit HangingMaker(std::shared_future<void> released) : released_(std::move(released)) {}
  Result<FeaturesPtr> make(Context&, MicroBatch) override {
    released_.wait();
    return unavailable("was let go");
  }

 private:
  std::shared_future<void> released_;
};

// TorchSpec#53 (C53): held-out data is wanted, and the target never delivers.
TEST(Train, TargetThatNeverAnswersEndsTheRunNamingIt) {
  const proto::Run run = make_tiny_run("hang", {.held_out = 3});
  std::promise<void> release;
  class Releaser : public RecordingObserver {
   public:
    explicit Releaser(std::promise<void>& release) : release_(release) {}
    void on_event(const std::string& text) override {
      RecordingObserver::on_event(text);
      if (text.starts_with("the run ends")) release_.set_value();
    }

   private:
    std::promise<void>& release_;
  } observer(release);
  const std::atomic<int> none{0};
  const RunEnvironment environment{system_files(), system_clock(), observer, none, 0.2};
  const auto setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  auto parts = make_run_parts(*setup, environment);
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  (*parts)->targets[0].maker = std::make_unique<HangingMaker>(release.get_future().share());
  const Result<RunSummary> summary = run_actors(**parts, environment);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(summary.status().message().find("target 0 on cpu:0 has worked on micro-batch (-1, 0)"),
            std::string::npos)
      << summary.status().message();
  EXPECT_EQ(observer.ends(), 1);
}

/// A trainer whose loss is not a number from its third step on.
class DivergingTrainer final : public StepTrainer {
 public:
  explicit DivergingTrainer(std::unique_ptr<StepTrainer> inner) : inner_(std::move(inner)) {}
  Result<StepSums> add(Context& context, const Features& features) override {
    Result<StepSums> sums = inner_->add(context, features);
    sums_ = inner_->sums();
    if (steps_ == 2) sums_.loss = std::nan("");
    return sums;
  }
  Result<StepSums> collect(Context& context, std::vector<float>& gradients) override {
    return inner_->collect(context, gradients);
  }
  const StepSums& sums() const override { return sums_; }
  void discard(Context& context) override { inner_->discard(context); }
  Result<AppliedStep> apply(Context& context, const std::vector<float>* gradients,
                            const StepSums& total, int64_t step) override {
    ++steps_;
    return inner_->apply(context, gradients, total, step);
  }
  Result<uint32_t> checksum(Context& context) override { return inner_->checksum(context); }
  Result<TrainerSnapshot> snapshot(Context& context, int64_t step) override {
    return inner_->snapshot(context, step);
  }
  Result<WalkCounts> evaluate(Context& context, const Features& features) override {
    return inner_->evaluate(context, features);
  }

 private:
  std::unique_ptr<StepTrainer> inner_;
  StepSums sums_;
  int steps_ = 0;
};

TEST(Train, DivergingLossEndsTheRunNamingTheStepAndKeepsTheCheckpointBefore) {
  proto::Run run = make_tiny_run("diverge", {.epochs = 4});
  run.mutable_checkpoint()->set_every_steps(2);
  RecordingObserver observer;
  const std::atomic<int> none{0};
  const RunEnvironment environment{system_files(), system_clock(), observer, none};
  const auto setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  auto parts = make_run_parts(*setup, environment);
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  std::unique_ptr<StepTrainer>& trainer = (*parts)->trainers[0].trainer;
  trainer = std::make_unique<DivergingTrainer>(std::move(trainer));
  const Result<RunSummary> summary = run_actors(**parts, environment);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.status().code(), StatusCode::kDataLoss);
  EXPECT_NE(
      summary.status().message().find("step 2 (epoch 0, micro-batches 4 to 5): the loss is nan"),
      std::string::npos)
      << summary.status().message();
  EXPECT_EQ(observer.steps().size(), 2u);
  EXPECT_FALSE(latest_masters(run).empty());
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
