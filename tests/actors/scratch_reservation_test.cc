// Scratch memory that is reserved before the first step from what planning counted.

#include "actors/scratch_reservation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "actors/run_memory.h"
#include "actors/run_plan.h"
#include "tests/actors/tiny_run.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// The size of an emulated card's memory while it lives.
class CardMemory {
 public:
  explicit CardMemory(uint64_t bytes) {
    PERCHERON_CHECK(setenv(kName, std::to_string(bytes).c_str(), 1) == 0, kName);
  }
  ~CardMemory() { (void)unsetenv(kName); }

 private:
  static constexpr const char* kName = "PERCHERON_EMULATED_MEMORY_BYTES";
};

proto::Run emulated_run(const std::string& name, bool dflash) {
  proto::Run run = make_tiny_run(name, {.samples = 40, .held_out = 3, .dflash = dflash});
  run.mutable_placement()->clear_targets();
  run.mutable_placement()->clear_trainers();
  run.mutable_placement()->add_targets("emulated:0");
  run.mutable_placement()->add_trainers("emulated:0");
  return run;
}

std::shared_ptr<const RunSetup> setup_of(const proto::Run& run) {
  auto setup = resolve_run(run, system_files());
  PERCHERON_CHECK(setup.ok(), setup.status().message());
  return *setup;
}

class ScratchReservation : public testing::TestWithParam<bool> {
 protected:
  Result<std::unique_ptr<RunParts>> parts_of(const proto::Run& run) {
    return make_run_parts(setup_of(run), {system_files(), system_clock(), observer_, no_signals_});
  }

  const std::atomic<int> no_signals_{0};
  RecordingObserver observer_;
};

// A whole epoch: the target's passes, the trainer's micro-batches and updates.
TEST_P(ScratchReservation, NoStepGetsMemory) {
  auto made = parts_of(emulated_run(GetParam() ? "scratch_dflash" : "scratch_eagle3", GetParam()));
  ASSERT_TRUE(made.ok()) << made.status().message();
  RunParts& parts = **made;
  const auto work = [&](Context& context) -> Status {
    const DeviceCounters& counters = context.device.counters();
    EXPECT_GT(context.arena.bytes_reserved(), 0u);
    EXPECT_EQ(context.arena.bytes_held(), context.arena.bytes_reserved());
    uint64_t allocations = 0, host_allocations = 0;
    const int64_t micro_batches = parts.setup->steps.micro_batches(0);
    EXPECT_GT(micro_batches, 4);
    for (int64_t i = 0; i < micro_batches; ++i) {
      if (i == 1) {  // Rotary tables and pinned memory are got by the first.
        allocations = counters.allocations;
        host_allocations = counters.host_allocations;
      }
      PERCHERON_ASSIGN_OR_RETURN(
          const MadeFeatures features,
          parts.targets[0].maker->make(context, parts.batches->make({0, i})));
      StepTrainer& trainer = *parts.trainers[0].trainer;
      PERCHERON_ASSIGN_OR_RETURN(const StepSums sums, trainer.add(context, *features.features));
      PERCHERON_RETURN_IF_ERROR(trainer.apply(context, nullptr, sums, i).status());
    }
    PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
    EXPECT_EQ(counters.allocations, allocations);
    EXPECT_EQ(counters.host_allocations, host_allocations);
    EXPECT_EQ(counters.scratch_growths, 0u);
    EXPECT_LE(context.arena.bytes_peak(), context.arena.bytes_reserved());
    // Planned for what it is, not for much more.
    EXPECT_GT(scratch_to_reserve(context.arena.bytes_peak()) * 5 / 4,
              context.arena.bytes_reserved());
    return ok_status();
  };
  const Status status = parts.workers[0]->run(work);
  EXPECT_TRUE(status.ok()) << status.message();
}

INSTANTIATE_TEST_SUITE_P(Drafters, ScratchReservation, testing::Bool(),
                         [](const auto& info) { return info.param ? "dflash" : "eagle3"; });

TEST(ScratchPlan, ACardThatIsTooSmallIsRefusedBeforeAnythingIsLoaded) {
  const proto::Run run = emulated_run("scratch_small", false);
  const Result<RunPlan> plan = plan_run(*setup_of(run), system_files());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const uint64_t bytes = plan->devices.at(0).bytes();
  RecordingObserver observer;
  const std::atomic<int> no_signals{0};
  for (const bool enough : {false, true}) {
    const CardMemory card(enough ? bytes + (1 << 20) : bytes - 1);
    const auto made =
        make_run_parts(setup_of(run), {system_files(), system_clock(), observer, no_signals});
    EXPECT_EQ(made.ok(), enough) << made.status().message();
    if (enough) continue;
    EXPECT_EQ(made.status().code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(made.status().message(),
                AllOf(HasSubstr("emulated:0 would hold"), HasSubstr("scratch memory"),
                      HasSubstr("data.token_budget")));
  }
}

TEST(ScratchPlan, ProcessorsReserveNothing) {
  const proto::Run run = make_tiny_run("scratch_cpu");
  RecordingObserver observer;
  const std::atomic<int> no_signals{0};
  const auto made =
      make_run_parts(setup_of(run), {system_files(), system_clock(), observer, no_signals});
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_TRUE((*made)
                  ->workers[0]
                  ->run([](Context& context) {
                    EXPECT_EQ(context.arena.bytes_reserved(), 0u);
                    return ok_status();
                  })
                  .ok());
}

// Both take turns in the memory of the one who needs most.
TEST(ScratchPlan, TargetAndTrainerShareTheScratchOfADevice) {
  proto::Run run = emulated_run("scratch_shared", false);
  const auto planned = [&run]() -> std::vector<DevicePlan> {
    const Result<RunPlan> plan = plan_run(*setup_of(run), system_files());
    PERCHERON_CHECK(plan.ok(), plan.status().message());
    return plan->devices;
  };
  const DevicePlan shared = planned().at(0);
  run.mutable_placement()->set_trainers(0, "emulated:1");
  const std::vector<DevicePlan> apart = planned();
  ASSERT_EQ(apart.size(), 2u);
  EXPECT_EQ(shared.scratch_bytes, std::max(apart[0].scratch_bytes, apart[1].scratch_bytes));
  EXPECT_EQ(shared.target_bytes, apart[0].target_bytes);
  EXPECT_EQ(shared.trainer_bytes, apart[1].trainer_bytes);
  // A trainer without a target has its embedding and head, not its layers.
  EXPECT_GT(apart[1].target_bytes, 0u);
  EXPECT_LT(apart[1].target_bytes, apart[0].target_bytes);
}

// A worker of a service is planned for its own part.
TEST(ScratchPlan, EachRoleOfAWorkerIsPlannedAlone) {
  const auto resolved = setup_of(emulated_run("scratch_role", false));
  const auto target =
      open_target_files(system_files(), resolved->config.target().path(), resolved->target);
  ASSERT_TRUE(target.ok());
  const auto counted = [&](bool has_target, int trainers) {
    const auto setup = std::make_shared<RunSetup>(*resolved);
    const DeviceId device{DeviceKind::kEmulated, 0};
    setup->placement.targets.assign(has_target ? 1 : 0, device);
    setup->placement.trainers.assign(static_cast<size_t>(trainers), device);
    RunPlan plan;
    plan.setup = setup;
    plan.devices = plan_devices(setup->placement);
    const Status status = count_memory(system_files(), plan, *target);
    EXPECT_TRUE(status.ok()) << status.message();
    return plan.devices.at(0);
  };
  const DevicePlan both = counted(true, 1), only_target = counted(true, 0),
                   only_trainer = counted(false, 1), two = counted(false, 2);
  EXPECT_EQ(only_target.trainer_bytes, 0u);
  EXPECT_EQ(only_trainer.trainer_bytes, both.trainer_bytes);
  EXPECT_LT(only_trainer.target_bytes, both.target_bytes);
  EXPECT_EQ(two.trainer_bytes, 2 * only_trainer.trainer_bytes);
  EXPECT_EQ(two.scratch_bytes, only_trainer.scratch_bytes) << "they take turns";
}

}  // namespace
}  // namespace percheron
