// Machines that are lost with the supervisor of a run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "tests/actors/tiny_run.h"
#include "tests/e2e/service.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using ::testing::HasSubstr;

/// Two nodes that both have a target and, `second` at least, a trainer of a run.
class ServiceSuccessor : public testing::Test {
 protected:
  explicit ServiceSuccessor()
      : secret_(make_secret()),
        second("second", member(secret_)),
        first("first", member(secret_, port_of(second))) {}

  static std::string make_secret() {
    const std::string path = testing::TempDir() + "service_successor.secret";
    write_file(path, std::string(64, 'b'));
    return path;
  }
  static proto::Run on_both(proto::Run run) {
    run.mutable_cluster()->set_successor_seconds(2);
    run.mutable_placement()->set_targets(0, "first/cpu:0");
    run.mutable_placement()->add_targets("second/cpu:0");
    run.mutable_placement()->set_trainers(0, "second/cpu:1");
    return run;
  }
  /// Until `second` has the run, and its actors work.
  nlohmann::json wait_for_successor(const std::string& run) const {
    nlohmann::json now;
    for (int i = 0; i < 600; ++i) {
      now = second.status(run);
      if (now["node"] == "second" && now["state"] == "running") return now;
      usleep(50'000);
    }
    ADD_FAILURE() << now.dump() << second.log();
    return now;
  }

 private:
  const std::string secret_;

 protected:
  TestNode second, first;
};

TEST_F(ServiceSuccessor, GoesOnWithTheSameBitsAndTheNodeThatComesBackHearsOfIt) {
  const proto::Run plain = service_run("service_successor", 60);
  const proto::Run run = on_both(plain);
  submit_when_known(first, run, "inherited");
  first.wait_for_step("inherited", 45);
  // It is written while the steps go on.
  first.wait_until(
      [&] { return system_files().list(run.output().directory() + "/step-00000040").ok(); });
  first.kill();
  EXPECT_GE(wait_for_successor("inherited")["step"], 40) << "from the newest checkpoint";
  EXPECT_THAT(second.log(), HasSubstr("run inherited taken over by node second: node first can't "
                                      "be reached"));
  first.start();
  first.wait_for_log("run inherited is on node second now");
  EXPECT_EQ(first.status("inherited")["node"], "second");
  const nlohmann::json done = second.wait_for("inherited", "done");
  EXPECT_EQ(done["node"], "second");
  EXPECT_EQ(done["step"], done["steps_total"]);
  EXPECT_EQ(first.ask("status")["runs"].size(), 1U);
  EXPECT_EQ(latest_masters(run), undisturbed(plain));
}

TEST_F(ServiceSuccessor, TheSupervisorThatWasOnlyStoppedEndsAndPublishesNothing) {
  proto::Run run = on_both(service_run("service_fenced", 400));
  run.mutable_placement()->add_trainers("first/cpu:1");
  run.mutable_cluster()->set_trusted_network(true);
  submit_when_known(first, run, "fenced");
  first.wait_for_step("fenced", 25);
  const std::vector<std::string> processes = {"supervisor fenced", "worker fenced/cpu:0",
                                              "worker fenced/cpu:1"};
  first.signal(SIGSTOP);
  for (const std::string& process : processes) first.kill_process(process, SIGSTOP);
  wait_for_successor("fenced");
  second.ask("pause fenced");
  second.wait_for("fenced", "paused");
  const auto checkpoints = [&] {
    std::vector<std::string> names = *system_files().list(run.output().directory());
    std::erase_if(names, [](const std::string& name) { return !name.starts_with("step-"); });
    return names;
  };
  const auto before = checkpoints();
  for (const std::string& process : processes) first.kill_process(process, SIGCONT);
  first.signal(SIGCONT);
  first.wait_for_log("run fenced is on node second now");
  EXPECT_EQ(checkpoints(), before);
  EXPECT_EQ(first.status("fenced")["node"], "second");
  EXPECT_EQ(second.status("fenced")["state"], "paused");
  second.ask("stop fenced");
  EXPECT_EQ(second.status("fenced")["state"], "stopped");
}

}  // namespace
}  // namespace percheron
