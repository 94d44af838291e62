// Devices that come to a run and leave it while it goes on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "tests/actors/tiny_run.h"
#include "tests/e2e/program.h"
#include "tests/e2e/service.h"

namespace percheron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> list(const nlohmann::json& json) {
  return json.get<std::vector<std::string>>();
}

void go_on_for(const TestNode& node, const std::string& run, int64_t steps) {
  node.wait_for_step(run, node.status(run)["step"].get<int64_t>() + steps);
}

TEST(ServiceScale, WithOneTrainerThroughoutTheBitsAreThoseOfTheUndisturbedRun) {
  const TestNode node("scaled");
  const proto::Run run = lasting_run(node, "service_scaled", 3);
  submit(node, run, "scaled");
  node.wait_for_step("scaled", 5);
  // A second target; then the first one elsewhere; then the trainer elsewhere.
  nlohmann::json now = node.ask("scale scaled --targets +cpu:2");
  EXPECT_THAT(list(now["targets"]), ElementsAre("scaled/cpu:0", "scaled/cpu:2"));
  go_on_for(node, "scaled", 5);
  now = node.ask("scale scaled --targets -cpu:0 --targets +scaled/cpu:3");
  EXPECT_THAT(list(now["targets"]), ElementsAre("scaled/cpu:2", "scaled/cpu:3"));
  EXPECT_EQ(list(node.ask("scale scaled --targets -cpu:0 --targets +scaled/cpu:3")["targets"]),
            list(now["targets"]))
      << "it may be said twice";
  now = node.ask("scale scaled --trainers +cpu:0 --trainers -cpu:1");
  EXPECT_THAT(list(now["trainers"]), ElementsAre("scaled/cpu:0"));
  EXPECT_THAT(run_program("logs scaled --state " + node.state()).output,
              HasSubstr("trainer 0 has left before step"));
  go_on_for(node, "scaled", 5);
  // Whoever is started again has the new placement, and the same steps.
  node.kill_process("worker scaled/cpu:3", SIGKILL);
  node.kill_process("supervisor scaled", SIGKILL);
  const nlohmann::json done = node.wait_for("scaled", "done");
  EXPECT_EQ(done["step"], done["steps_total"]);
  EXPECT_EQ(latest_masters(run), undisturbed(run));
}

TEST(ServiceScale, DevicesChangeTheirRolesAndTrainersComeAndGo) {
  const TestNode node("roles");
  proto::Run run = service_run("service_roles", 10000);
  run.mutable_train()->set_micro_batches_per_step(3);
  run.mutable_placement()->add_targets("cpu:2");
  submit(node, run, "roles");
  node.wait_for_step("roles", 5);
  nlohmann::json now = node.ask("scale roles --targets -cpu:2 --trainers +cpu:2");
  EXPECT_THAT(list(now["targets"]), ElementsAre("roles/cpu:0"));
  EXPECT_THAT(list(now["trainers"]), ElementsAre("roles/cpu:1", "roles/cpu:2"));
  go_on_for(node, "roles", 5);
  // Also while it is held.
  node.ask("pause roles");
  now = node.ask("scale roles --trainers -cpu:1");
  EXPECT_THAT(list(now["trainers"]), ElementsAre("roles/cpu:2"));
  EXPECT_EQ(node.status("roles")["state"], "paused");
  node.ask("resume roles");
  go_on_for(node, "roles", 5);
  // Without devices the change is the next start's.
  node.ask("pause roles --release-devices");
  now = node.ask("scale roles --targets -cpu:0 --targets +cpu:3");
  EXPECT_THAT(now["text"].get<std::string>(), HasSubstr("when it goes on"));
  node.ask("resume roles");
  go_on_for(node, "roles", 5);
  EXPECT_THAT(run_program("logs roles --device cpu:3 --state " + node.state()).exit_code, 0);
  node.ask("stop roles");
}

TEST(ServiceScale, WhatCanNotBeIsOneErrorAndChangesNothing) {
  const TestNode node("unscaled");
  const proto::Run run = service_run("service_unscaled", 10000);
  proto::Run other = service_run("service_other", 10000);
  other.mutable_placement()->set_targets(0, "cpu:4");
  other.mutable_placement()->set_trainers(0, "cpu:4");
  submit(node, run, "unscaled");
  submit(node, other, "other");
  node.wait_for_step("unscaled", 2);
  node.wait_for_step("other", 1);
  const auto error_of = [&](const std::string& arguments) {
    const ProgramResult result =
        run_program("scale unscaled " + arguments + " --state " + node.state());
    EXPECT_EQ(result.exit_code, 1) << arguments << result.output;
    return result.output;
  };
  EXPECT_THAT(error_of("--targets +cpu:4"), HasSubstr("unscaled/cpu:4 belongs to run other"));
  EXPECT_THAT(error_of("--targets +nowhere/cpu:1"), HasSubstr("node 'nowhere'"));
  EXPECT_THAT(error_of("--targets -cpu:0"), HasSubstr("no target of the run would be left"));
  EXPECT_THAT(error_of("--targets cpu:2"), HasSubstr("write +DEVICE"));
  EXPECT_THAT(error_of(""), HasSubstr("nothing is to be changed"));
  // A device that can't be had: nobody has left for it.
  EXPECT_THAT(error_of("--trainers -cpu:1 --trainers +cuda:77"),
              HasSubstr("the worker of unscaled/cuda:77"));
  const std::string same = node.ask("scale unscaled --targets -cpu:7")["text"].get<std::string>();
  EXPECT_EQ(same, "has targets unscaled/cpu:0 and trainers unscaled/cpu:1");
  go_on_for(node, "unscaled", 3);
  node.ask("stop unscaled --now");
  node.ask("stop other --now");
}

}  // namespace
}  // namespace percheron
