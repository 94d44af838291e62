// Targets on several devices of a node, in one process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "tests/actors/tiny_run.h"
#include "tests/e2e/program.h"
#include "tests/e2e/service.h"
#include "tests/model/toy_model.h"
#include "tools/run_config.h"

namespace percheron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// `run` with targets on two devices each.
proto::Run in_pairs(proto::Run run, const std::vector<std::string>& targets,
                    const std::vector<std::string>& trainers) {
  proto::Placement& placement = *run.mutable_placement();
  placement.clear_targets();
  placement.clear_trainers();
  for (const std::string& target : targets) placement.add_targets(target);
  for (const std::string& trainer : trainers) placement.add_trainers(trainer);
  placement.set_tensor_parallel(2);
  return run;
}

std::vector<std::string> list(const nlohmann::json& json) {
  return json.get<std::vector<std::string>>();
}

/// The devices of the processes that a run has.
std::vector<std::string> processes(const TestNode& node, const std::string& run) {
  std::vector<std::string> devices;
  const nlohmann::json status = node.status(run);
  for (const auto& worker : status["workers"]) devices.push_back(worker["device"]);
  return devices;
}

void go_on_for(const TestNode& node, const std::string& run, int64_t steps) {
  node.wait_for_step(run, node.status(run)["step"].get<int64_t>() + steps);
}

TEST(ServiceParallel, ATargetOnTwoDevicesIsOneProcessAndTheBitsAreThoseOfTrain) {
  const TestNode node("pairs");
  const proto::Run lasting = lasting_run(node, "service_pairs", 4);
  const proto::Run run = in_pairs(lasting, {"cpu:0", "cpu:1"}, {"cpu:4"});
  submit(node, run, "pairs");
  node.wait_for_step("pairs", 5);
  EXPECT_THAT(processes(node, "pairs"), ElementsAre("cpu:0+1", "cpu:4"));
  // Its death is one death, and a restart is one process.
  node.kill_process("worker pairs/cpu:0+1", SIGKILL);
  // What it had made ahead lasts for a while.
  node.wait_until([&] {
    const nlohmann::json now = node.status("pairs");
    return now["workers"][0]["restarts"] == 1 && now["workers"][0]["state"] == "ready";
  });
  go_on_for(node, "pairs", 5);
  // A second target, then the first one leaves.
  nlohmann::json now = node.ask("scale pairs --targets +pairs/cpu:2,pairs/cpu:3");
  EXPECT_THAT(list(now["targets"]), ElementsAre("pairs/cpu:0+1", "pairs/cpu:2+3"));
  go_on_for(node, "pairs", 5);
  now = node.ask("scale pairs --targets -cpu:0+1");
  EXPECT_THAT(list(now["targets"]), ElementsAre("pairs/cpu:2+3"));
  const nlohmann::json status = node.ask("status");
  for (const auto& device : status["nodes"][0]["devices"]) {
    const bool stays = device["device"] != "cpu:0" && device["device"] != "cpu:1";
    EXPECT_EQ(device["run"], stays ? "pairs" : "") << device.dump();
  }
  EXPECT_EQ(run_program("logs pairs --device cpu:3 --state " + node.state()).exit_code, 0);
  go_on_for(node, "pairs", 5);
  node.kill_process("supervisor pairs", SIGKILL);
  const nlohmann::json done = node.wait_for("pairs", "done");
  EXPECT_EQ(done["step"], done["steps_total"]);
  EXPECT_EQ(latest_masters(run), undisturbed(run));
}

TEST(ServiceParallel, ATrainerMayShareADeviceWithAPartOfATarget) {
  const TestNode node("beside");
  const proto::Run run = in_pairs(service_run("service_beside", 4), {"cpu:0", "cpu:1"}, {"cpu:1"});
  submit(node, run, "beside");
  node.wait_for("beside", "done");
  EXPECT_THAT(run_program("logs beside --state " + node.state()).output,
              HasSubstr("beside/cpu:0+1 (target 0, trainer 0)"));
  EXPECT_EQ(latest_masters(run), undisturbed(run));
}

TEST(ServiceParallel, EmulatedDevicesHoldATargetTogether) {
  if (!open_device({DeviceKind::kEmulated, 0}, {}).ok()) GTEST_SKIP() << "no emulator here";
  const TestNode node("emulated");
  proto::Run run = make_tiny_run("service_emulated", {.samples = 8, .epochs = 1});
  run = in_pairs(run, {"emulated:0", "emulated:1"}, {"emulated:1"});
  submit(node, run, "emulated");
  node.wait_for("emulated", "done");
  EXPECT_EQ(latest_masters(run), undisturbed(run));
}

TEST(ServiceParallel, DevicesOfATargetBecomeTrainersAndATargetAgain) {
  const TestNode node("apart");
  proto::Run run = in_pairs(service_run("service_apart", 10000), {"cpu:0-3"}, {"cpu:4"});
  run.mutable_train()->set_micro_batches_per_step(4);
  submit(node, run, "apart");
  node.wait_for_step("apart", 2);
  nlohmann::json now = node.ask("scale apart --targets -cpu:2,cpu:3 --trainers +cpu:2,cpu:3");
  EXPECT_THAT(list(now["targets"]), ElementsAre("apart/cpu:0+1"));
  EXPECT_THAT(list(now["trainers"]), ElementsAre("apart/cpu:4", "apart/cpu:2", "apart/cpu:3"));
  go_on_for(node, "apart", 3);
  now = node.ask("scale apart --targets +cpu:2-3 --trainers -cpu:2-3");
  EXPECT_THAT(list(now["targets"]), ElementsAre("apart/cpu:0+1", "apart/cpu:2+3"));
  go_on_for(node, "apart", 3);
  EXPECT_THAT(processes(node, "apart"), ElementsAre("cpu:0+1", "cpu:2+3", "cpu:4"));
  node.ask("stop apart --now");
}

TEST(ServiceParallel, WhatCanNotHoldATargetIsOneError) {
  const TestNode node("unpaired");
  const std::string at = " --state " + node.state();
  const auto error_of = [&](const std::string& arguments) {
    const ProgramResult result = run_program(arguments + at);
    EXPECT_EQ(result.exit_code, 1) << arguments << result.output;
    return result.output;
  };
  const std::string path = testing::TempDir() + "service_unpaired.yaml";
  const auto refused = [&](const std::vector<std::string>& targets) {
    write_file(path, run_config_yaml(
                         in_pairs(service_run("service_unpaired", 10000), targets, {"cpu:9"})));
    return error_of("submit -c " + path);
  };
  EXPECT_THAT(refused({"cpu:0", "other/cpu:1"}),
              HasSubstr("placement.targets lets unpaired/cpu:0 and other/cpu:1 hold one target"));
  EXPECT_THAT(refused({"cpu:0-2"}), HasSubstr("names only unpaired/cpu:2 for a target"));
  EXPECT_THAT(refused({"cpu:0-2", "cpu:1"}), HasSubstr("names unpaired/cpu:1 twice"));
  proto::Run run = in_pairs(service_run("service_pair", 10000), {"cpu:0-1"}, {"cpu:4"});
  submit(node, run, "pair");
  node.wait_for_step("pair", 2);
  EXPECT_THAT(error_of("scale pair --targets +cpu:2"), HasSubstr("name 2 of one node"));
  EXPECT_THAT(error_of("scale pair --targets +cpu:2,cpu:1"),
              HasSubstr("names unpaired/cpu:1 twice"));
  EXPECT_THAT(error_of("scale pair --targets +cpu:2, --trainers +cpu:3"), HasSubstr("a comma"));
  // Another run waits as long as one of the devices is this one's.
  proto::Run other = service_run("service_wants_part", 1);
  other.mutable_placement()->set_targets(0, "cpu:1");
  other.mutable_placement()->set_trainers(0, "cpu:8");
  submit(node, other, "wants_part");
  EXPECT_THAT(node.wait_for("wants_part", "queued")["message"].get<std::string>(),
              HasSubstr("waits for unpaired/cpu:1, which run pair has"));
  EXPECT_THAT(error_of("scale pair --trainers +cpu:2+3"), HasSubstr("and one is wanted"));
  node.ask("stop pair --now");
  node.wait_for("wants_part", "done");
}

TEST(ServiceParallel, TheModelDecidesOnHowManyDevicesItIsHeld) {
  const TestNode node("odd");
  proto::Run run = in_pairs(service_run("service_odd", 1), {"cpu:0-2"}, {"cpu:4"});
  run.mutable_placement()->set_tensor_parallel(3);
  submit(node, run, "odd");
  EXPECT_THAT(node.wait_for("odd", "failed")["message"].get<std::string>(),
              HasSubstr("placement.tensor_parallel is 3"));
}

TEST(ServiceWeights, WhatEightBitsCostIsSaidOnceAndShown) {
  const TestNode node("eight");
  proto::Run run = service_run("service_eight", 10000);
  run.mutable_placement()->add_targets("cpu:2");
  run.mutable_target()->set_weights(proto::Target::INT8);
  submit(node, run, "eight");
  node.wait_for_step("eight", 2);
  node.kill_process("worker eight/cpu:0", SIGKILL);
  go_on_for(node, "eight", 5);
  const std::string said = "target weights: int8, one scale per output channel; top-1 agreement";
  const std::string log = run_program("logs eight --state " + node.state()).output;
  const size_t at = log.find(said);
  EXPECT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find(said, at + 1), std::string::npos) << "by one worker, once";
  const std::vector<std::string> notes = list(node.status("eight")["notes"]);
  EXPECT_THAT(notes, ElementsAre(HasSubstr(said)));
  EXPECT_THAT(run_program("status eight --state " + node.state()).output, HasSubstr(said));
  node.ask("stop eight");
}

}  // namespace
}  // namespace percheron
