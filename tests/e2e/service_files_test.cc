// What a daemon leaves on its disk: logs that rotate under processes that write, runs that are
// forgotten.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/file_system.h"
#include "tests/e2e/program.h"
#include "tests/e2e/service.h"

namespace percheron {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> names_in(const std::string& directory) {
  const Result<std::vector<std::string>> names = system_files().list(directory);
  return names.ok() ? *names : std::vector<std::string>();
}

// Until `there` is true, for a minute at most.
void wait_until(const std::function<bool()>& there) {
  for (int i = 0; i < 1200 && !there(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_TRUE(there());
}

/// A run that says something at every step, until it is stopped.
proto::Run talkative(const std::string& name) {
  proto::Run run = service_run(name, 10000);
  run.mutable_train()->set_log_every_steps(1);
  return run;
}

TEST(Service, LogsRotateUnderTheirProcessesAndFollowersReadAll) {
  const TestNode node("rotating", {"--log-bytes", "1KiB", "--log-files", "500"});
  submit(node, talkative("service_rotating"), "rotating");
  std::future<ProgramResult> follower = std::async(std::launch::async, [&node] {
    return run_program("logs -f rotating --state " + node.state());
  });
  const std::string directory = node.state() + "/logs/rotating";
  // Those of the two workers have little to say.
  wait_until([&] { return names_in(directory).size() >= 5; });
  node.ask("stop rotating");
  const ProgramResult followed = follower.get();
  EXPECT_EQ(followed.exit_code, 0);
  EXPECT_THAT(followed.output, Not(HasSubstr("no longer kept")));
  EXPECT_EQ(followed.output, run_program("logs rotating --state " + node.state()).output);
  std::string bytes;
  for (const std::string& name : names_in(directory)) {
    if (!name.starts_with("supervisor.log")) continue;
    bytes += system_files().read_text(directory + "/" + name).value();
  }
  EXPECT_EQ(followed.output.size(), bytes.size()) << "the files hold what was followed";
}

TEST(Service, OldLogsGoAndThatIsSaid) {
  const TestNode node("short", {"--log-bytes", "1KiB", "--log-files", "2"});
  submit(node, talkative("service_short"), "short");
  wait_until([&] {
    const std::string said = run_program("logs short --state " + node.state()).output;
    return said.find(" here are no longer kept)") != std::string::npos;
  });
}

TEST(Service, RunsThatAreOverAreForgottenAndTheirOutputStays) {
  TestNode node("tidy", {"--keep-runs", "1"});
  const proto::Run first = service_run("service_gone", 1), second = service_run("service_kept", 1);
  submit(node, first, "gone");
  node.wait_for("gone", "done");
  submit(node, second, "kept");
  node.wait_for("kept", "done");
  node.kill();
  node.start();
  wait_until([&] { return node.log().find("run gone, which ended ") != std::string::npos; });
  EXPECT_THAT(run_program("status gone --state " + node.state()).output,
              HasSubstr("there is no run gone"));
  EXPECT_EQ(node.status("kept")["state"], "done");
  EXPECT_THAT(names_in(node.state() + "/logs"), Not(Contains("gone")));
  EXPECT_THAT(names_in(node.state() + "/logs"), Contains("kept"));
  EXPECT_THAT(names_in(first.output().directory()), Contains("latest"));
}

TEST(Service, TheDaemonsOwnLogRotates) {
  const std::string log = testing::TempDir() + "daemon_log/node.log";
  ASSERT_TRUE(system_files().remove_all(testing::TempDir() + "daemon_log").ok());
  ASSERT_TRUE(system_files().create_directories(testing::TempDir() + "daemon_log").ok());
  const TestNode node("spoken", {"--log", log, "--log-bytes", "100B"});
  submit(node, service_run("service_spoken", 1), "spoken");
  node.wait_for("spoken", "done");
  EXPECT_THAT(names_in(testing::TempDir() + "daemon_log"), Not(IsEmpty()));
  EXPECT_EQ(node.log(), "") << "nothing goes elsewhere";
  std::string said;
  for (const std::string& name : names_in(testing::TempDir() + "daemon_log")) {
    said += system_files().read_text(testing::TempDir() + "daemon_log/" + name).value();
  }
  EXPECT_THAT(said, HasSubstr("run spoken is done"));
}

TEST(Service, LimitsThatCanNotBeAreOneError) {
  EXPECT_THAT(run_program("node --log-bytes none").output, HasSubstr("--log-bytes is 'none'"));
  EXPECT_THAT(run_program("node --log-files 1").output, HasSubstr("must be from 2 to 1000"));
  EXPECT_THAT(run_program("node --keep-days -1").output, HasSubstr("must be at least 0"));
}

}  // namespace
}  // namespace percheron
