#include "actors/run_plan.h"

#include <gtest/gtest.h>

#include "base/file_system.h"
#include "tests/actors/tiny_run.h"

namespace percheron {
namespace {

RunPlan plan_of(const proto::Run& run) {
  const auto setup = resolve_run(run, system_files());
  PERCHERON_CHECK(setup.ok(), "the run can be resolved");
  Result<RunPlan> plan = plan_run(**setup, system_files());
  PERCHERON_CHECK(plan.ok(), "the run can be planned");
  return std::move(plan).value();
}

TEST(RunPlan, CountsStepsBytesAndMemory) {
  for (const bool dflash : {false, true}) {
    SCOPED_TRACE(dflash ? "dflash" : "eagle3");
    proto::Run run = make_tiny_run("plan", {.held_out = 3, .epochs = 3, .dflash = dflash});
    place(run, 2, 1);
    const auto setup = resolve_run(run, system_files());
    ASSERT_TRUE(setup.ok()) << setup.status().message();
    const Result<RunPlan> plan = plan_run(**setup, system_files());
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->epochs, 3);
    EXPECT_EQ(plan->steps, (*setup)->steps.steps());
    EXPECT_EQ(plan->feature_bytes_per_token,
              static_cast<uint64_t>(dflash ? 3 * 32 * 4 + 5 : 4 * 32 * 4 + 9));
    ASSERT_EQ(plan->devices.size(), 3u);
    EXPECT_GT(plan->devices[0].target_bytes, 4u * 97 * 32);
    EXPECT_EQ(plan->devices[0].trainer_bytes, 0u);
    EXPECT_GT(plan->devices[2].trainer_bytes, 16u * static_cast<uint64_t>(plan->trained_parameters))
        << "masters, gradients and two moments";
    EXPECT_NE(plan->text().find("features.bytes_max"), std::string::npos) << plan->text();
  }
}

// Few tokens are compared: with more, those activations are the most that there is at a time.
TEST(RunPlan, CountsAByteForAnEightBitWeight) {
  proto::Run run = make_tiny_run("plan_weights");
  run.mutable_target()->set_compare_tokens(8);
  const auto bytes = [&](proto::Target::Weights weights) {
    run.mutable_target()->set_weights(weights);
    const auto setup = resolve_run(run, system_files());
    EXPECT_TRUE(setup.ok()) << setup.status().message();
    const Result<RunPlan> plan = plan_run(**setup, system_files());
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan->devices.front().target_bytes;
  };
  const uint64_t full = bytes(proto::Target::FULL);
  EXPECT_LT(bytes(proto::Target::INT8), full);
  EXPECT_EQ(bytes(proto::Target::FP8), bytes(proto::Target::INT8));
}

TEST(RunPlan, CountsWhatAnEvaluationTakes) {
  proto::Run run = make_tiny_run("plan_evaluation", {.held_out = 3});
  uint64_t bytes[2] = {};
  for (int i = 0; i < 2; ++i) {
    run.mutable_evaluate()->clear_draft_lengths();
    run.mutable_evaluate()->add_draft_lengths(i == 0 ? 1 : 60);
    const auto setup = resolve_run(run, system_files());
    ASSERT_TRUE(setup.ok()) << setup.status().message();
    const Result<RunPlan> plan = plan_run(**setup, system_files());
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    bytes[i] = plan->devices.back().trainer_bytes;
  }
  EXPECT_GT(bytes[1], bytes[0]);
}

TEST(RunPlan, RefusesWhatTheMachineCannotHold) {
  const proto::Run run = make_tiny_run("plan_fits", {.held_out = 3});
  const auto setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  Result<RunPlan> planned = plan_run(**setup, system_files());
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  RunPlan& plan = planned.value();
  const uint64_t host = plan.host_bytes();
  EXPECT_GT(host, plan.devices[0].bytes() + plan.held_out_bytes);
  EXPECT_TRUE(check_plan_fits(plan, {.host = host, .devices = {}}).ok());
  Status refused = check_plan_fits(plan, {.host = host - 1, .devices = {}});
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("host memory"), std::string::npos) << refused.message();
  // A device with memory of its own takes nothing of the host's.
  const DeviceId cuda{DeviceKind::kCuda, 1};
  plan.devices[0].id = cuda;
  EXPECT_LT(plan.host_bytes(), host);
  const uint64_t bytes = plan.devices[0].bytes();
  EXPECT_TRUE(check_plan_fits(plan, {.host = host, .devices = {{cuda, bytes}}}).ok());
  refused = check_plan_fits(plan, {.host = host, .devices = {{cuda, bytes - 1}}});
  EXPECT_NE(refused.message().find("cuda:1"), std::string::npos) << refused.message();
}

// Captured states pass through memory of the host that stays with the run, and so do those of the
// next micro-batch; it was once not in the plan.
TEST(RunPlan, CountsWhatDevicesPinInHostMemory) {
  if (!open_device({DeviceKind::kEmulated, 0}, {}).ok()) GTEST_SKIP() << "no emulator here";
  proto::Run run = make_tiny_run("plan_pinned", {.epochs = 1});
  EXPECT_EQ(plan_of(run).devices[0].pinned_bytes, 0u) << "a processor copies nothing";
  run.mutable_placement()->set_targets(0, "emulated:0");
  run.mutable_placement()->set_trainers(0, "emulated:1");
  const RunPlan plan = plan_of(run);
  const uint64_t states = 4u * 3 * 32 * static_cast<uint64_t>(plan.setup->tokens_max);
  EXPECT_GE(plan.devices[0].pinned_bytes, 2 * states) << "two passes";
  EXPECT_GE(plan.devices[1].pinned_bytes, 2 * states) << "two micro-batches";
  EXPECT_GT(plan.host_bytes(), plan.devices[0].pinned_bytes + plan.devices[1].pinned_bytes +
                                   plan.devices[0].bytes() + plan.devices[1].bytes());
  EXPECT_NE(plan.text().find("pinned for copies"), std::string::npos) << plan.text();

  run.mutable_mailbox()->set_prefetch_bytes(0);
  EXPECT_LT(plan_of(run).devices[1].pinned_bytes, plan.devices[1].pinned_bytes);
  run.mutable_placement()->add_targets("emulated:0");
  const RunPlan two = plan_of(run);
  EXPECT_EQ(two.devices[0].pinned_bytes, 2 * plan.devices[0].pinned_bytes);
  EXPECT_EQ(two.devices[0].target_bytes,
            plan.devices[0].target_bytes + plan.devices[0].pinned_bytes);
}

}  // namespace
}  // namespace percheron
