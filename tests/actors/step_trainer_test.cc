#include "actors/step_trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "actors/batch_source.h"
#include "tests/actors/tiny_run.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

class StepTrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    const proto::Run run = make_tiny_run("trainer");
    auto setup = resolve_run(run, system_files());
    ASSERT_TRUE(setup.ok()) << setup.status().message();
    setup_ = *setup;
    TargetOptions options;
    options.compute_dtype = DType::kF32;
    options.capture = setup_->drafter.capture;
    options.capture_last = true;
    target_ = load_target(device_, run.target().path(), options);
    BatchSource batches(setup_, system_clock());
    for (int64_t i = 0; i < 4; ++i) {
      Result<Features> features = capture_features(device_.context(), *target_,
                                                   batches.make({0, i}), DType::kF32, Top1::kYes);
      ASSERT_TRUE(features.ok()) << features.status().message();
      features_.push_back(std::move(features).value());
    }
  }

  std::unique_ptr<DrafterTrainer> trainer() {
    auto made = DrafterTrainer::make(device_.context(), system_files(), setup_, *target_);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made).value();
  }

  TrainerSnapshot snapshot(DrafterTrainer& trainer) {
    auto made = trainer.snapshot(device_.context(), 0);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made).value();
  }

  void add(DrafterTrainer& trainer, size_t index) {
    const auto sums = trainer.add(device_.context(), features_[index]);
    ASSERT_TRUE(sums.ok()) << sums.status().message();
  }

  TestDevice device_{1};
  std::shared_ptr<const RunSetup> setup_;
  std::unique_ptr<Target> target_;
  std::vector<Features> features_;
};

// SpecForge#571, TorchSpec#32, #33: who has nothing joins with zeros.
TEST_F(StepTrainerTest, SumsOfTwoTrainersAreThoseOfOneAlsoIfOneHasNothing) {
  for (const size_t second_has : {0u, 2u}) {
    SCOPED_TRACE(second_has);
    auto alone = trainer(), first = trainer(), second = trainer();
    for (size_t i = 0; i < 4; ++i) {
      add(*alone, i);
      add(i < second_has ? *second : *first, i);
    }
    std::vector<float> expected, gradients, others;
    const auto whole = alone->collect(device_.context(), expected);
    auto sums = first->collect(device_.context(), gradients);
    const auto other = second->collect(device_.context(), others);
    ASSERT_TRUE(whole.ok() && sums.ok() && other.ok());
    sums->add(*other);
    EXPECT_NEAR(sums->loss, whole->loss, 1e-6 * whole->loss);
    EXPECT_DOUBLE_EQ(sums->weight, whole->weight);
    EXPECT_EQ(sums->supervised, whole->supervised);
    ASSERT_EQ(gradients.size(), expected.size());
    float largest = 0;
    for (float g : expected) largest = std::max(largest, std::abs(g));
    for (size_t i = 0; i < expected.size(); ++i) {
      gradients[i] += others[i];
      EXPECT_NEAR(gradients[i], expected[i], 1e-5F * largest);
    }
    const auto applied = first->apply(device_.context(), &gradients, *sums, 0);
    const auto updated = second->apply(device_.context(), &gradients, *sums, 0);
    ASSERT_TRUE(applied.ok() && updated.ok());
    EXPECT_EQ(*first->checksum(device_.context()), *second->checksum(device_.context()));
  }
}

TEST_F(StepTrainerTest, StepWithoutWeightIsSkippedAndChangesNothing) {
  auto trainer = this->trainer();
  const uint32_t before = *trainer->checksum(device_.context());
  const auto applied = trainer->apply(device_.context(), nullptr, StepSums(), 3);
  ASSERT_TRUE(applied.ok()) << applied.status().message();
  EXPECT_TRUE(applied->skipped);
  EXPECT_EQ(*trainer->checksum(device_.context()), before);
}

TEST_F(StepTrainerTest, LossOrGradientThatIsNotFiniteChangesNothing) {
  auto trainer = this->trainer();
  add(*trainer, 0);
  const uint32_t before = *trainer->checksum(device_.context());
  StepSums bad = trainer->sums();
  bad.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(trainer->apply(device_.context(), nullptr, bad, 0).status().code(),
            StatusCode::kDataLoss);
  std::vector<float> gradients;
  ASSERT_TRUE(trainer->collect(device_.context(), gradients).ok());
  gradients[5] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(trainer->apply(device_.context(), &gradients, trainer->sums(), 0).status().code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(*trainer->checksum(device_.context()), before);
}

TEST_F(StepTrainerTest, DiscardForgetsTheStepsGradientsAndSums) {
  auto trainer = this->trainer(), fresh = this->trainer();
  add(*trainer, 0);
  trainer->discard(device_.context());
  EXPECT_EQ(trainer->sums().tokens, 0);
  add(*trainer, 1);
  add(*fresh, 1);
  std::vector<float> gradients, expected;
  ASSERT_TRUE(trainer->collect(device_.context(), gradients).ok());
  ASSERT_TRUE(fresh->collect(device_.context(), expected).ok());
  EXPECT_EQ(gradients, expected);
}

// SpecForge bcb2ec2a.
TEST_F(StepTrainerTest, RestoredTrainerGoesOnToTheSameBits) {
  auto trainer = this->trainer();
  const auto step = [&](DrafterTrainer& who, int64_t number) {
    add(who, static_cast<size_t>(number));
    const auto applied = who.apply(device_.context(), nullptr, who.sums(), number);
    ASSERT_TRUE(applied.ok()) << applied.status().message();
  };
  step(*trainer, 0);
  step(*trainer, 1);
  const TrainerSnapshot saved = snapshot(*trainer);
  auto other = this->trainer();
  std::map<std::string, ConstTensorView> masters;
  for (const auto& [name, master] : saved.masters) {
    masters[name] = ConstTensorView(master.values.data(), DType::kF32, master.shape);
  }
  const Status restored = other->restore(device_.context(), masters, saved.optimizer);
  ASSERT_TRUE(restored.ok()) << restored.message();
  EXPECT_EQ(*other->checksum(device_.context()), *trainer->checksum(device_.context()));
  step(*trainer, 2);
  step(*other, 2);
  EXPECT_EQ(*other->checksum(device_.context()), *trainer->checksum(device_.context()));
}

// SpecForge bcb2ec2a: evaluation leaves no trace.
TEST_F(StepTrainerTest, EvaluationChangesNeitherParametersNorTheStep) {
  auto trainer = this->trainer(), fresh = this->trainer();
  add(*trainer, 0);
  const auto counts = trainer->evaluate(device_.context(), features_[1]);
  ASSERT_TRUE(counts.ok()) << counts.status().message();
  ASSERT_EQ(counts->rounds.size(), 1u);
  EXPECT_GT(counts->rounds[0], 0);
  EXPECT_GE(counts->tokens[0], counts->rounds[0]);
  add(*fresh, 0);
  std::vector<float> gradients, expected;
  ASSERT_TRUE(trainer->collect(device_.context(), gradients).ok());
  ASSERT_TRUE(fresh->collect(device_.context(), expected).ok());
  EXPECT_EQ(gradients, expected);
  EXPECT_EQ(*trainer->checksum(device_.context()), *fresh->checksum(device_.context()));
}

}  // namespace
}  // namespace percheron
