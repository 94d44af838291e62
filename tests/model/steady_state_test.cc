// What a step of training asks of its device once it is warm: no memory, few waits, and the same
// launches as one graph.

#include <gtest/gtest.h>

#include <functional>

#include "model/capture_pipeline.h"
#include "model/optimizer.h"
#include "model/parameter_list.h"
#include "tests/model/training_case.h"

namespace percheron {
namespace {

constexpr int64_t kVocabulary = 23, kHidden = 10;
constexpr int kMicroBatches = 3;  // of a step

/// A drafter on an emulated GPU of its own, from the same values each time.
class Trained {
 public:
  Trained(DrafterKind kind, bool graphs)
      : device_({DeviceKind::kEmulated, 0}, {.threads = 1, .graphs = graphs}) {
    const bool eagle3 = kind == DrafterKind::kEagle3;
    DrafterConfig config = eagle3 ? small_eagle3_config() : small_dflash_config();
    config.draft_vocab_size = kVocabulary;
    states_ = std::ssize(config.capture);
    drafter_ = std::move(make_drafter(device_.context(), config, target_.parts, {}, DType::kF32, 3))
                   .value();
    randomise(device_, 3, *drafter_);
    optimizer_ = std::move(Optimizer::make(device_.context(), {.learning_rate = 1e-2},
                                           drafter_->parameters()))
                     .value();
    loss_.hard_labels = !eagle3;
    loss_.ttt_steps = 3;
    loss_.gamma = 3;
    loss_.anchors_max = 2;  // as many in every document
  }

  /// Documents of the same lengths and masks, `seed` the rest.
  Features features(uint64_t seed, int64_t longer = 0) {
    const std::vector<TrainingDocument> documents = {
        random_document(seed, 12 + longer, 3, kVocabulary),
        random_document(seed + 1, 9, 2, kVocabulary)};
    Features features = random_features(seed, documents, states_, kHidden, seed);
    fill_top1(target_, features);
    return features;
  }
  StepSums add(const Features& features) {
    const Result<StepSums> sums = drafter_->forward_backward(device_.context(), features, loss_);
    PERCHERON_CHECK(sums.ok(), sums.status().message());
    return *sums;
  }
  double update(double weight) {
    const Result<double> norm = optimizer_->step(device_.context(), weight, 1);
    PERCHERON_CHECK(norm.ok(), norm.status().message());
    drafter_->weights_changed(device_.context());
    return *norm;
  }
  /// Losses and the gradient's norm of a step on micro-batches of the same shapes.
  std::vector<double> step(uint64_t seed) {
    StepSums total;
    for (int i = 0; i < kMicroBatches; ++i) {
      total.add(add(features(1000 * seed + 10 * static_cast<uint64_t>(i))));
    }
    return {total.loss, total.weight, update(total.weight)};
  }
  std::vector<std::vector<float>> parameters() {
    std::vector<std::vector<float>> values;
    for (const auto& parameter : drafter_->parameters()) {
      values.push_back(device_.floats(parameter->value));
    }
    return values;
  }
  LossConfig& loss() { return loss_; }
  const DeviceCounters& counters() { return device_.context().device.counters(); }
  Context& context() { return device_.context(); }

 private:
  TestDevice device_;
  TrainingTarget target_{device_, 11, kVocabulary, kHidden};
  int64_t states_ = 0;
  std::unique_ptr<Drafter> drafter_;
  std::unique_ptr<Optimizer> optimizer_;
  LossConfig loss_;
};

class SteadyState : public testing::TestWithParam<DrafterKind> {};

/// What five steps after the first ask for: no memory, and so many waits for each micro-batch
/// beside one for each step.
void expect_steady(Trained& trained, uint64_t waits) {
  trained.step(1);
  const uint64_t allocations = trained.counters().allocations;
  const uint64_t host_allocations = trained.counters().host_allocations;
  const uint64_t before = trained.counters().waits;
  for (uint64_t seed = 2; seed < 7; ++seed) trained.step(seed);
  EXPECT_EQ(trained.counters().allocations, allocations);
  EXPECT_EQ(trained.counters().host_allocations, host_allocations);
  EXPECT_EQ(trained.counters().waits - before, 5 * (waits * kMicroBatches + 1));
}

TEST_P(SteadyState, StepsGetNoMemoryAndWaitOncePerMicroBatchAndUpdate) {
  for (const bool graphs : {false, true}) {
    SCOPED_TRACE(graphs);
    Trained trained(GetParam(), graphs);
    expect_steady(trained, 1);
  }
}

TEST_P(SteadyState, ReservedScratchIsEnoughAndItsLackIsCounted) {
  size_t peak = 0;
  {
    Trained trained(GetParam(), true);
    trained.step(1);
    peak = trained.context().arena.bytes_peak();
  }
  for (const bool enough : {true, false}) {
    SCOPED_TRACE(enough);
    Trained trained(GetParam(), true);
    ASSERT_TRUE(trained.context().arena.reserve(enough ? peak : peak - 1).ok());
    trained.step(1);
    EXPECT_EQ(trained.counters().scratch_growths > 0, !enough);
    // It has grown into one piece after the next micro-batch, and needs no more.
    const uint64_t growths = trained.counters().scratch_growths;
    trained.step(2);
    trained.step(3);
    EXPECT_EQ(trained.counters().scratch_growths, growths);
  }
}

TEST_P(SteadyState, GraphsGiveTheSameBits) {
  Trained direct(GetParam(), false), graphs(GetParam(), true);
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const std::vector<double> expected = direct.step(seed);
    EXPECT_EQ(graphs.step(seed), expected) << seed;
  }
  EXPECT_EQ(graphs.parameters(), direct.parameters());
  EXPECT_EQ(direct.counters().graphs_launched, 0u);
  EXPECT_EQ(graphs.counters().graphs_recorded, 1u);
  EXPECT_EQ(graphs.counters().graphs_launched, 5u * kMicroBatches - 1);
  EXPECT_EQ(graphs.counters().graphs_refused, 0u);
}

TEST_P(SteadyState, AMicroBatchIsAFewLaunches) {
  Trained direct(GetParam(), false), graphs(GetParam(), true);
  const auto launches = [](Trained& trained) {
    for (uint64_t seed = 1; seed <= 2; ++seed) trained.step(seed);
    const uint64_t before = trained.context().stream.launches();
    trained.add(trained.features(77));
    return trained.context().stream.launches() - before;
  };
  const uint64_t one_by_one = launches(direct), as_graph = launches(graphs);
  RecordProperty("direct", static_cast<int>(one_by_one));
  RecordProperty("graph", static_cast<int>(as_graph));
  EXPECT_GT(one_by_one, 100u);
  // Uploads, one graph, and what is read back.
  EXPECT_LE(as_graph, 15u);
}

TEST_P(SteadyState, OtherShapesAndLossesRunAsTheyAre) {
  Trained direct(GetParam(), false), graphs(GetParam(), true);
  const auto both = [&](const std::function<double(Trained&)>& what) {
    EXPECT_EQ(what(graphs), what(direct));
  };
  for (int i = 0; i < 3; ++i) {
    both([](Trained& t) { return t.add(t.features(1)).loss; });
  }
  const uint64_t launched = graphs.counters().graphs_launched;
  both([](Trained& t) { return t.add(t.features(1, 4)).loss; });
  both([](Trained& t) {
    t.loss().mixture = {{TeacherLoss::kSoftCrossEntropy, 0.25}};
    return t.add(t.features(1)).loss;
  });
  both([](Trained& t) {
    t.loss().workspace_bytes = 2 * 4 * kVocabulary * 3;  // three rows at a time
    return t.add(t.features(1)).loss;
  });
  EXPECT_LE(graphs.counters().graphs_launched, launched + 1) << "hard labels need no mixture";
  both([](Trained& t) { return t.update(10); });
  EXPECT_EQ(graphs.parameters(), direct.parameters());
}

INSTANTIATE_TEST_SUITE_P(Drafters, SteadyState,
                         testing::Values(DrafterKind::kEagle3, DrafterKind::kDflash),
                         [](const auto& info) {
                           return info.param == DrafterKind::kEagle3 ? "eagle3" : "dflash";
                         });

// The host weighs the losses of whole blocks amid the micro-batch, which therefore is no graph.
TEST(SteadyDpace, WaitsTwicePerMicroBatch) {
  Trained trained(DrafterKind::kDflash, true);
  trained.loss().position_weight = PositionWeight::kDpace;
  expect_steady(trained, 2);
  EXPECT_EQ(trained.counters().graphs_recorded, 0u);
}

TEST(SteadyCapture, PassesGetNoMemory) {
  TestDevice device({DeviceKind::kEmulated, 0}, {.threads = 2});
  TargetOptions options = f32_options({1, 3});
  options.capture_last = true;
  const auto target =
      load_target(device, make_toy_model(4).write(fresh_directory("model")), options);
  CapturePipeline pipeline(*target, DType::kBf16, Top1::kYes, 40);
  const DeviceCounters& counters = device.context().device.counters();
  uint64_t allocations = 0, host_allocations = 0;
  for (int pass = 0; pass < 4; ++pass) {
    if (pass == 2) {  // The second pass has all in one piece.
      allocations = counters.allocations;
      host_allocations = counters.host_allocations;
    }
    const std::vector<int32_t> ids = random_tokens(static_cast<uint64_t>(pass), 40, 90);
    MicroBatch batch;
    batch.token_ids.assign(ids.begin(), ids.end());
    batch.loss_mask.assign(ids.size(), 1);
    batch.offsets = {0, 15, 40};
    batch.sample_ids = {1, 2};
    Result<CapturePipeline::Pending> pending = pipeline.begin(device.context(), batch);
    ASSERT_TRUE(pending.ok()) << pending.status().message();
    const Result<Features> features = pending->finish();
    ASSERT_TRUE(features.ok()) << features.status().message();
  }
  EXPECT_EQ(counters.allocations, allocations);
  EXPECT_EQ(counters.host_allocations, host_allocations);
}

}  // namespace
}  // namespace percheron
