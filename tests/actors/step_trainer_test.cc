#include "actors/step_trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "actors/batch_source.h"
#include "actors/gradient_reduction.h"
#include "tests/actors/tiny_run.h"
#include "tests/model/toy_model.h"
#include "tests/test_device.h"

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

TEST_F(StepTrainerTest, SumsBetweenDevicesAreToTheBitThoseThroughHostMemory) {
  auto by_host = trainer();
  std::unique_ptr<DrafterTrainer> members[] = {trainer(), trainer()};
  for (const auto& member : members) {
    ASSERT_TRUE(member->sum_between_devices(device_.context(), kGradientBucketBytes).ok());
  }
  std::vector<float> gradients, others;
  StepSums sums;
  for (size_t i = 0; i < 2; ++i) {
    add(*by_host, i);
    const auto own = by_host->collect(device_.context(), i == 0 ? gradients : others);
    ASSERT_TRUE(own.ok());
    sums.add(*own);
    by_host->discard(device_.context());
    add(*members[i], i);
  }
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] += others[i];
  ASSERT_TRUE(by_host->apply(device_.context(), &gradients, sums, 0).ok());

  const DeviceId devices[] = {test_device(), test_device()};
  DeviceCollectives collectives = make_device_collectives(devices, {}).value();
  for (int step = 0; step < 2; ++step) {
    StepSums total;
    for (const auto& member : members) {
      ASSERT_TRUE(device_.context().stream.wait_idle().ok());
      total.add(member->sums());
    }
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        Device& device = device_.context().device;
        const auto stream = device.make_stream();
        EXPECT_TRUE(members[i]->reduce(*stream, *collectives[i], 0).ok());
        EXPECT_TRUE(collectives[i]->wait_idle(*stream).ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& member : members) {
      ASSERT_TRUE(member->apply_reduced(device_.context(), total, step).ok());
    }
    EXPECT_EQ(*members[0]->checksum(device_.context()), *members[1]->checksum(device_.context()));
    if (step == 0) {
      EXPECT_EQ(*by_host->checksum(device_.context()), *members[0]->checksum(device_.context()));
      add(*members[0], 2);  // the other has nothing and joins with zeros
    }
  }
}

TEST(GradientBuckets, AreConsecutiveAndReachTheirSize) {
  std::vector<float> values(100);
  std::vector<ReducedTensor> tensors;
  for (const int64_t n : {1, 2, 30, 4, 5, 6}) {
    const TensorView view(values.data(), DType::kF32, {n});
    tensors.push_back({view, view});
  }
  const auto buckets = make_gradient_buckets(tensors, 8 * sizeof(float));
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].size(), 3u);
  EXPECT_EQ(buckets[1].size(), 2u);
  EXPECT_EQ(buckets[2].size(), 1u) << "the rest";
  EXPECT_EQ(buckets[2].data(), &tensors[5]);
  EXPECT_TRUE(make_gradient_buckets({}, 1).empty());
}

TEST(HostSumReason, DevicesSumWhereEachTrainerHasItsOwnOfOneKind) {
  const DeviceId cpu0{DeviceKind::kCpu, 0}, cuda0{DeviceKind::kCuda, 0},
      cuda1{DeviceKind::kCuda, 1}, cuda2{DeviceKind::kCuda, 2};
  PlacementPlan placement;
  const auto reason = [&](std::vector<DeviceId> trainers, Assignment assignment) {
    placement.trainers = std::move(trainers);
    return host_sum_reason(placement, assignment);
  };
  constexpr Assignment kStealing = Assignment::kStealing;
  EXPECT_EQ(reason({cuda0, cuda1}, kStealing), "");
  EXPECT_EQ(reason({cuda0}, kStealing), "there is one trainer");
  EXPECT_EQ(reason({cpu0, cpu0}, kStealing), "the trainers share the host's memory");
  EXPECT_EQ(reason({cuda0, cpu0}, kStealing), "the trainers' devices are of several kinds");
  EXPECT_EQ(reason({cuda0, cuda0}, kStealing), "several trainers share a device");
  EXPECT_EQ(reason({cuda0, cuda1}, Assignment::kFixed),
            "mailbox.assignment: fixed sums in the trainers' order");
  placement.targets = {cuda1, cuda2};
  EXPECT_EQ(reason({cuda0, cuda1}, kStealing), "") << "targets on one device each";
  placement.tensor_parallel = 2;
  EXPECT_EQ(reason({cuda0, cuda1}, kStealing),
            "a trainer shares its device with a part of a target");
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
