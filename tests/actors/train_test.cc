#include "actors/train.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <future>
#include <map>

#include "tests/actors/forwarding_trainer.h"
#include "tests/actors/tiny_run.h"
#include "tests/model/toy_model.h"

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

TEST(Train, EightBitTargetTeachesAndSaysWhatItsWeightsCost) {
  proto::Run run = make_tiny_run("int8", {.held_out = 6, .epochs = 6});
  run.mutable_target()->set_weights(proto::Target::INT8);
  run.mutable_target()->set_compare_tokens(40);
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_LT(observer.steps().back().loss, observer.steps().front().loss);
  EXPECT_TRUE(
      observer.heard("target weights: int8, one scale per output channel; top-1 agreement"));
  EXPECT_TRUE(observer.heard("over 40 held-out tokens"));
  EXPECT_EQ(counter(*summary, "target_weights_compared_tokens"), 40);
  const int64_t same = counter(*summary, "target_weights_same_top1");
  EXPECT_GT(same, 20) << "8 bits are no other model";
  EXPECT_LE(same, 40);

  run.mutable_target()->set_weights(proto::Target::FULL);
  RecordingObserver refused;
  const Status status = train_tiny(run, refused).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.message();
  EXPECT_NE(status.message().find("target.weights"), std::string::npos) << status.message();
}

TEST(Train, EightBitWeightsAreNotComparedWhereThatIsOff) {
  proto::Run run = make_tiny_run("int8_silent", {.epochs = 1});
  run.mutable_target()->set_weights(proto::Target::FP8);
  run.mutable_target()->set_compare_tokens(0);
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_TRUE(observer.heard("target weights: fp8, one scale per output channel"));
  EXPECT_FALSE(observer.heard("top-1 agreement"));
  EXPECT_EQ(counter(*summary, "target_weights_compared_tokens"), -1);
}

TEST(Train, EveryTopologyTrainsTheSameStepsToTheSameLosses) {
  constexpr auto kStealing = proto::Mailbox::STEALING;
  struct Case {
    int targets, trainers;
    proto::Mailbox::Assignment assignment = kStealing;
  };
  std::vector<StepReport> expected;
  for (const auto& [targets, trainers, assignment] :
       std::vector<Case>{{1, 1},
                         {2, 1},
                         {1, 2},
                         {3, 2},
                         {5, 3},
                         {5, 3, proto::Mailbox::ROUND_ROBIN},
                         {1, 3, proto::Mailbox::ROUND_ROBIN},
                         {2, 3, proto::Mailbox::PER_TRAINER_QUEUE}}) {
    SCOPED_TRACE(testing::Message() << targets << " targets, " << trainers << " trainers, "
                                    << proto::Mailbox::Assignment_Name(assignment));
    proto::Run run = make_tiny_run("topology", {.epochs = 4, .micro_batches_per_step = 3});
    run.mutable_mailbox()->set_assignment(assignment);
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

// The same actors and models over the CUDA kernels, which the emulator runs: target forward,
// drafter forward and backward, reduction, optimizer.
TEST(Train, EmulatedDevicesLearnWhatTheProcessorLearns) {
  if (!open_device({DeviceKind::kEmulated, 0}, {}).ok()) GTEST_SKIP() << "no emulator here";
  for (const bool dflash : {false, true}) {
    SCOPED_TRACE(dflash ? "DFlash" : "EAGLE-3");
    proto::Run run = make_tiny_run("emulated", {.samples = 8, .epochs = 2, .dflash = dflash});
    if (dflash) run.mutable_drafter()->set_layers(2);
    RecordingObserver expected;
    ASSERT_TRUE(train_tiny(run, expected).ok());
    run.mutable_output()->set_directory(run.output().directory() + "_emulated");
    run.mutable_placement()->set_targets(0, "emulated:0");
    run.mutable_placement()->set_trainers(0, "emulated:1");
    RecordingObserver observer;
    const Result<RunSummary> summary = train_tiny(run, observer);
    ASSERT_TRUE(summary.ok()) << summary.status().message();
    ASSERT_EQ(observer.steps().size(), expected.steps().size());
    ASSERT_GE(observer.steps().size(), 2u);
    for (size_t i = 0; i < observer.steps().size(); ++i) {
      EXPECT_LT(relative(expected.steps()[i].loss, observer.steps()[i].loss), 1e-4) << "step " << i;
      EXPECT_LT(relative(expected.steps()[i].gradient_norm, observer.steps()[i].gradient_norm),
                1e-3)
          << "step " << i;
    }
  }
}

// SpecForge c3ecb528: 5 targets, 3 trainers, 17 samples; nothing is dropped, nothing hangs.
TEST(Train, FiveTargetsAndThreeTrainersFinishSeventeenSamples) {
  proto::Run run = make_tiny_run("odd", {.samples = 17, .epochs = 2, .micro_batches_per_step = 2});
  run.mutable_data()->set_token_budget(48);  // about one sample each
  place(run, 5, 3);
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(summary->steps, summary->steps_total);
  EXPECT_EQ(summary->epochs, 2);
  int64_t trained = 0;
  for (const int trainer : {0, 1, 2}) {
    trained += std::max<int64_t>(
        0, counter(*summary, fmt::format("micro_batches_of_trainer_{}_since_start", trainer)));
  }
  EXPECT_GE(trained, summary->steps);
}

/// The first step of each order, where all samples make one step. `name` of the runs' directory.
std::vector<StepReport> first_steps_of_orders(const std::string& name, bool dflash,
                                              const std::function<void(proto::Run&)>& configure) {
  std::vector<StepReport> first_steps;
  for (const auto order :
       {proto::Data::PACKED, proto::Data::SORTED, proto::Data::SHUFFLED, proto::Data::BUCKETED}) {
    proto::Run run =
        make_tiny_run(name, {.epochs = 1, .micro_batches_per_step = 100, .dflash = dflash});
    configure(run);
    run.mutable_data()->set_order(order);
    if (order == proto::Data::BUCKETED) run.mutable_data()->set_buckets(2);
    RecordingObserver observer;
    const Result<RunSummary> summary = train_tiny(run, observer);
    EXPECT_TRUE(summary.ok()) << summary.status().message();
    EXPECT_EQ(observer.steps().size(), 1u);
    if (observer.steps().size() == 1) first_steps.push_back(observer.steps()[0]);
  }
  return first_steps;
}

void expect_the_same(const std::vector<StepReport>& steps) {
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_GT(steps[2].tokens, steps[0].tokens) << "the shuffled order pads";
  for (size_t i = 1; i < steps.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "order " << i);
    EXPECT_EQ(steps[i].supervised, steps[0].supervised);
    EXPECT_LT(relative(steps[0].loss, steps[i].loss), 1e-5);
    EXPECT_LT(relative(steps[0].gradient_norm, steps[i].gradient_norm), 1e-4);
  }
}

// Padding is computed and never seen: every order has the same loss over the same supervised
// tokens. With mask_shift 0 the row after an answer counts, which in a padded sample is padding.
TEST(Train, PaddedOrdersTrainOnTheSameTokensToTheSameLoss) {
  for (const int mask_shift : {0, 1, 2}) {
    for (const bool whole_vocabulary : {false, true}) {
      for (const bool gate : {false, true}) {
        SCOPED_TRACE(testing::Message() << "mask_shift " << mask_shift << ", whole vocabulary "
                                        << whole_vocabulary << ", gate " << gate);
        expect_the_same(first_steps_of_orders("orders", false, [&](proto::Run& run) {
          run.mutable_loss()->set_mask_shift(mask_shift);
          run.mutable_loss()->set_gate_on_draft_vocab(gate);
          if (whole_vocabulary) run.mutable_drafter()->clear_draft_vocab_size();
        }));
      }
    }
  }
  SCOPED_TRACE("DFlash");
  expect_the_same(first_steps_of_orders("orders", true, [](proto::Run&) {}));
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
  Result<std::unique_ptr<FeaturesUnderWay>> begin(Context&, MicroBatch) override {
    released_.wait();
    return unavailable("was let go");
  }

 private:
  std::shared_future<void> released_;
};

// TorchSpec#53: held-out data is wanted, and the target never delivers.
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
class DivergingTrainer final : public ForwardingTrainer {
 public:
  using ForwardingTrainer::ForwardingTrainer;
  Result<StepSums> add(Context& context, const Features& features) override {
    Result<StepSums> sums = ForwardingTrainer::add(context, features);
    sums_ = ForwardingTrainer::sums();
    if (steps_ == 2) sums_.loss = std::nan("");
    return sums;
  }
  const StepSums& sums() const override { return sums_; }
  Result<AppliedStep> apply(Context& context, const std::vector<float>* gradients,
                            const StepSums& total, int64_t step) override {
    ++steps_;
    return ForwardingTrainer::apply(context, gradients, total, step);
  }

 private:
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

TEST(Train, RunThatCannotStartLeavesNothingBehind) {
  const proto::Run run = make_tiny_run("no_start");
  write_file(join_path(run.target().path(), "model.safetensors"), "truncated");
  RecordingObserver observer;
  EXPECT_FALSE(train_tiny(run, observer).ok());
  EXPECT_FALSE(system_files().exists(run.output().directory()));

  // A directory that was there before stays, with what lies in it.
  ASSERT_TRUE(system_files().create_directories(run.output().directory()).ok());
  write_file(join_path(run.output().directory(), "notes.txt"), "mine");
  EXPECT_FALSE(train_tiny(run, observer).ok());
  EXPECT_TRUE(system_files().exists(join_path(run.output().directory(), "notes.txt")));
}

// SpecForge d84778a1: a poisoned sample is set aside, counted, and the run goes on.
TEST(Train, SampleWithStatesThatAreNotFiniteIsSetAside) {
  TinyOptions options{.held_out = 3, .epochs = 2};
  options.poisoned = 1;
  proto::Run run = make_tiny_run("poison", options);
  run.mutable_features()->set_dtype(proto::Features::BF16);
  run.mutable_features()->set_cache_memory_bytes_max(100 << 20);
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(counter(*summary, "samples_quarantined_since_start"), 1);
  EXPECT_TRUE(observer.heard("sample 5 is set aside"));
  EXPECT_EQ(summary->steps, summary->steps_total);

  options.poisoned = 3;
  run = make_tiny_run("poisoned", options);
  run.mutable_features()->set_dtype(proto::Features::BF16);
  const Result<RunSummary> refused = train_tiny(run, observer);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kDataLoss);
}

/// Notes how many jobs wait and how many steps were applied whenever it evaluates.
class WatchingTrainer final : public ForwardingTrainer {
 public:
  WatchingTrainer(std::unique_ptr<StepTrainer> inner, const DeviceWorker& worker)
      : ForwardingTrainer(std::move(inner)), worker_(worker) {}
  Result<AppliedStep> apply(Context& context, const std::vector<float>* gradients,
                            const StepSums& total, int64_t step) override {
    ++applied_;
    return ForwardingTrainer::apply(context, gradients, total, step);
  }
  Result<WalkCounts> evaluate(Context& context, const Features& features) override {
    waiting_max = std::max(waiting_max, worker_.waiting());
    ++evaluated_at[applied_];
    return ForwardingTrainer::evaluate(context, features);
  }

  size_t waiting_max = 0;
  std::map<int64_t, int64_t> evaluated_at;

 private:
  const DeviceWorker& worker_;
  int64_t applied_ = 0;
};

// Many trainers on one device, each with many held-out micro-batches, once ended the program: all
// of an evaluation was posted at once.
TEST(Train, EvaluationsQueueLittleAndMeasureTheParametersOfTheirStep) {
  proto::Run run = make_tiny_run("evaluations", {.held_out = 60, .epochs = 2});
  run.mutable_evaluate()->set_every_steps(1);
  RecordingObserver observer;
  const std::atomic<int> none{0};
  const RunEnvironment environment{system_files(), system_clock(), observer, none};
  const auto setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  auto parts = make_run_parts(*setup, environment);
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  TrainerPlace& place = (*parts)->trainers[0];
  auto watching = std::make_unique<WatchingTrainer>(std::move(place.trainer), *place.worker);
  const WatchingTrainer& watched = *watching;
  place.trainer = std::move(watching);
  const int64_t held_out = (*parts)->batches->held_out_micro_batches();
  ASSERT_GT(held_out, 15);
  const Result<RunSummary> summary = run_actors(**parts, environment);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_LE(watched.waiting_max, 8u);
  ASSERT_EQ(static_cast<int64_t>(watched.evaluated_at.size()), summary->steps + 1);
  for (const auto& [step, count] : watched.evaluated_at) EXPECT_EQ(count, held_out) << step;
}

// A job that never ends once held a process that was declared ended.
TEST(Train, JobThatNeverEndsIsGivenUpAfterALimit) {
  const proto::Run run = make_tiny_run("stuck");
  std::promise<void> release;
  RecordingObserver observer;
  const std::atomic<int> none{0};
  RunEnvironment environment{system_files(), system_clock(), observer, none, 0.2};
  environment.stop_seconds = 0.1;
  Status given_up;
  environment.give_up = [&](const Status& why) {
    given_up = why;
    release.set_value();  // The test goes on where a process would end.
  };
  const auto setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  auto parts = make_run_parts(*setup, environment);
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  (*parts)->targets[0].maker = std::make_unique<HangingMaker>(release.get_future().share());
  const Result<RunSummary> summary = run_actors(**parts, environment);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(given_up.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(observer.heard("a job does not end"));
}

TEST(Train, CheckpointsTellTheBytesOfAllTheirFiles) {
  const proto::Run run = make_tiny_run("bytes", {.epochs = 1});
  RecordingObserver observer;
  ASSERT_TRUE(train_tiny(run, observer).ok());
  const CheckpointReport& report = observer.checkpoints().back();
  const auto model = system_files().file_size(join_path(report.directory, "model.safetensors"));
  const auto moments =
      system_files().file_size(join_path(report.directory, "training_state/optimizer.safetensors"));
  ASSERT_TRUE(model.ok() && moments.ok());
  EXPECT_GT(report.bytes, *model + *moments);
}

}  // namespace
}  // namespace percheron
