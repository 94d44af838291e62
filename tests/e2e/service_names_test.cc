// What two runs of a cluster may not share: a name, and a device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "tests/actors/tiny_run.h"
#include "tests/e2e/program.h"
#include "tests/e2e/service.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using ::testing::HasSubstr;

std::string secret() {
  const std::string path = testing::TempDir() + "service_names.secret";
  write_file(path, std::string(64, 'c'));
  return path;
}

TEST(ServiceNames, RunsThatTwoNodesCallTheSameGetNamesOfTheirOwnWhenTheNodesMeet) {
  const std::string shared = secret();
  const TestNode first("early", member(shared));
  TestNode second("late", member(shared));
  const proto::Run one = service_run("service_twin_one", 400),
                   two = service_run("service_twin_two");
  EXPECT_EQ(submit(first, one, "twin"), "twin");
  EXPECT_EQ(submit(second, two, "twin"), "twin");
  second.wait_for_step("twin", 25);
  second.stop();
  second.start(member(shared, port_of(first)));
  second.wait_for_log("run twin is called twin-2 from now on");
  // The later one goes on from its checkpoint, under its new name.
  second.wait_for("twin-2", "done");
  EXPECT_EQ(latest_masters(two), undisturbed(two));
  EXPECT_EQ(first.status("twin")["node"], "early");
  EXPECT_EQ(second.status("twin")["node"], "early");
  // Nodes that know each other ask before.
  EXPECT_EQ(submit(second, service_run("service_twin_three", 1), "twin"), "twin-3");
  first.ask("stop twin --now");
}

TEST(ServiceDevices, OfTwoOrdersForOneDeviceTheSecondIsRefusedAtOnce) {
  const std::string shared = secret();
  const TestNode left("left", member(shared));
  const TestNode right("right", member(shared, port_of(left)));
  proto::Run one = service_run("service_claim_one", 10000),
             two = service_run("service_claim_two", 10000);
  two.mutable_placement()->set_targets(0, "right/cpu:0");
  two.mutable_placement()->set_trainers(0, "right/cpu:1");
  submit(left, one, "one");
  submit_when_known(right, two, "two");
  left.wait_for_step("one", 2);
  right.wait_for_step("two", 2);
  // The first order waits for a supervisor that is stopped.
  left.kill_process("supervisor one", SIGSTOP);
  ProgramResult first;
  std::thread order([&] {
    first = run_program("scale one --targets +right/cpu:5 --timeout 60 --state " + left.state());
  });
  const auto owner = [&] {
    const nlohmann::json status = right.ask("status");
    for (const auto& node : status["nodes"]) {
      for (const auto& device : node["devices"]) {
        if (node["node"] == "right" && device["device"] == "cpu:5") {
          return device["run"].get<std::string>();
        }
      }
    }
    return std::string();
  };
  right.wait_until([&] { return owner() == "one"; });
  const ProgramResult second =
      run_program("scale two --targets +cpu:5 --timeout 60 --state " + right.state());
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.output, HasSubstr("right/cpu:5 belongs to run one"));
  left.kill_process("supervisor one", SIGCONT);
  order.join();
  EXPECT_EQ(first.exit_code, 0) << first.output;
  right.wait_until([&] { return owner() == "one"; });
  // What has left is free for the other.
  left.ask("scale one --targets -right/cpu:5");
  right.ask("scale two --targets +cpu:5");
  EXPECT_EQ(owner(), "two");
  left.ask("stop one --now");
  right.ask("stop two --now");
}

}  // namespace
}  // namespace percheron
