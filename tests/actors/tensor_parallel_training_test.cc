#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "actors/feature_capture.h"
#include "actors/run_plan.h"
#include "tests/actors/offline_features.h"
#include "tests/actors/tiny_run.h"

namespace percheron {
namespace {

using testing::HasSubstr;

// What decides a target's shape in a tiny run: 4 heads, 2 key heads.
void hold_together(proto::Run& run, int size) {
  run.mutable_placement()->set_tensor_parallel(size);
}

double relative(double a, double b) { return std::abs(a - b) / std::max(1e-12, std::abs(a)); }

void expect_same_losses(const std::vector<StepReport>& expected,
                        const std::vector<StepReport>& actual) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size() && i < 20; ++i) {
    EXPECT_EQ(actual[i].tokens, expected[i].tokens) << "step " << i;
    EXPECT_LT(relative(expected[i].loss, actual[i].loss), 1e-5) << "step " << i;
  }
}

TEST(TensorParallelTraining, TargetsOnTwoDevicesEachTrainToTheSameLosses) {
  for (const bool dflash : {false, true}) {
    RecordingObserver expected;
    proto::Run run = make_tiny_run("tp", {.held_out = 4, .epochs = 2, .dflash = dflash});
    ASSERT_TRUE(train_tiny(run, expected).ok());
    for (const int targets : {1, 2}) {
      SCOPED_TRACE(testing::Message() << targets << " targets" << (dflash ? ", DFlash" : ""));
      run.mutable_output()->set_directory(run.output().directory() + "_" + std::to_string(targets));
      place(run, 2 * targets, 2);
      // A trainer beside rank 1, which has no head, borrows rank 0's.
      run.mutable_placement()->set_trainers(0, "cpu:1");
      hold_together(run, 2);
      RecordingObserver observer;
      const Result<RunSummary> summary = train_tiny(run, observer);
      ASSERT_TRUE(summary.ok()) << summary.status().message();
      expect_same_losses(expected.steps(), observer.steps());
      ASSERT_EQ(observer.evaluations().size(), expected.evaluations().size());
    }
  }
}

// Trainers whose devices have memory of their own borrow from the rank beside them, and sum their
// gradients between the devices where none of these belongs to a target's group.
TEST(TensorParallelTraining, EmulatedDevicesTrainTogether) {
  if (!open_device({DeviceKind::kEmulated, 0}, {}).ok()) GTEST_SKIP() << "no emulator here";
  proto::Run run = make_tiny_run("tp_emulated", {.samples = 8, .epochs = 1});
  RecordingObserver expected;
  ASSERT_TRUE(train_tiny(run, expected).ok());
  const auto train_on = [&](const char* name, std::initializer_list<const char*> trainers,
                            RecordingObserver& observer) {
    run.mutable_output()->set_directory(run.output().directory() + name);
    proto::Placement& placement = *run.mutable_placement();
    placement.clear_targets();
    placement.clear_trainers();
    for (const char* target : {"emulated:0", "emulated:1"}) placement.add_targets(target);
    for (const char* trainer : trainers) placement.add_trainers(trainer);
    hold_together(run, 2);
    const Result<RunSummary> summary = train_tiny(run, observer);
    ASSERT_TRUE(summary.ok()) << summary.status().message();
    ASSERT_EQ(observer.steps().size(), expected.steps().size());
    for (size_t i = 0; i < observer.steps().size(); ++i) {
      EXPECT_LT(relative(expected.steps()[i].loss, observer.steps()[i].loss), 1e-4) << "step " << i;
    }
  };
  RecordingObserver beside, apart;
  train_on("_beside", {"emulated:1", "emulated:2"}, beside);
  EXPECT_TRUE(beside.heard("gradients are summed in host memory: a trainer shares its device"));
  train_on("_apart", {"emulated:2", "emulated:3"}, apart);
  EXPECT_TRUE(apart.heard("gradients are summed between the devices, in buckets of 32"));
}

TEST(TensorParallelCapture, WritesTheSameFilesEachTimeAndTrainsToTheSameLosses) {
  proto::Run run = make_tiny_run("tp_capture");
  RecordingObserver expected;
  ASSERT_TRUE(train_tiny(run, expected).ok());
  place(run, 2, 1);
  hold_together(run, 2);
  RecordingCapture observer;
  std::vector<std::map<std::string, std::string>> contents;
  CaptureOptions options;
  for (const char* name : {"first", "second"}) {
    options.directory = no_directory(name);
    const auto summary = capture_tiny(run, options, observer);
    ASSERT_TRUE(summary.ok()) << summary.status().message();
    EXPECT_EQ(summary->captured, 24);
    contents.push_back(contents_of(options.directory));
  }
  EXPECT_EQ(contents[0], contents[1]);
  run.mutable_features()->add_from(options.directory);
  run.mutable_output()->set_directory(run.output().directory() + "_offline");
  RecordingObserver offline;
  const Result<RunSummary> summary = train_tiny(run, offline);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  expect_same_losses(expected.steps(), offline.steps());
}

TEST(TensorParallelPlan, EachRankHoldsItsShareOfTheLayers) {
  proto::Run run = make_tiny_run("tp_plan", {.held_out = 3});
  const auto planned = [&]() -> RunPlan {
    const auto setup = resolve_run(run, system_files());
    PERCHERON_CHECK(setup.ok(), setup.status().message());
    const Result<RunPlan> plan = plan_run(**setup, system_files());
    PERCHERON_CHECK(plan.ok(), plan.status().message());
    return *plan;
  };
  const RunPlan whole = planned();
  place(run, 2, 1);
  hold_together(run, 2);
  const RunPlan plan = planned();
  ASSERT_EQ(plan.devices.size(), 3u);
  // Scratch comes in blocks that are larger than these layers. Per layer: q and o, k and v, MLP.
  const double layers = 4.0 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32) * sizeof(float);
  const double heads = 2.0 * 97 * 32 * sizeof(float);  // as stored and packed; on rank 0 only
  const auto saved = [&](size_t rank) {
    return static_cast<double>(whole.devices[0].target_bytes) -
           static_cast<double>(plan.devices[rank].target_bytes);
  };
  EXPECT_NEAR(saved(0), layers / 2, layers / 20);
  EXPECT_NEAR(saved(1), layers / 2 + heads, layers / 20);
  EXPECT_EQ(plan.devices[0].rank, 0);
  EXPECT_EQ(plan.devices[1].rank, 1);
  EXPECT_THAT(plan.text(), HasSubstr("target, rank 1 of 2,"));
}

}  // namespace
}  // namespace percheron
