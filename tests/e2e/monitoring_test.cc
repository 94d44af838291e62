// What people watch a run with: a real Prometheus, its rules, the dashboard, the unit of the
// daemon.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/file_system.h"
#include "tests/actors/tiny_run.h"
#include "tests/e2e/program.h"
#include "tests/model/toy_model.h"
#include "tools/run_config.h"

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// As tests/e2e/scrape_run.py says that a program that it needs is absent.
constexpr int kSkipped = 77;

ProgramResult run_shell(const std::string& command) {
  ProgramResult result;
  std::FILE* pipe =
      popen(("PATH=\"$PATH:$PWD/build/test-programs\"; " + command + " 2>&1").c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  if (pipe == nullptr) return result;
  std::array<char, 4096> buffer;
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    result.output.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

std::string python() {
  const char* given = std::getenv("PERCHERON_PYTHON");
  return given != nullptr ? given : ".venv/bin/python";
}

bool is_there(const std::string& program) {
  return run_shell("command -v " + program).exit_code == 0;
}

/// A run that has something of everything, and would last for an hour.
std::string long_run() {
  proto::Run run = make_tiny_run("monitored", {.samples = 200, .held_out = 12, .epochs = 9000});
  place(run, 2, 2);
  run.mutable_data()->set_order(proto::Data::BUCKETED);
  run.mutable_evaluate()->set_every_steps(400);
  run.mutable_checkpoint()->set_every_steps(200);
  run.mutable_train()->set_log_every_steps(50);
  const std::string path = testing::TempDir() + "monitored.yaml";
  write_file(path, run_config_yaml(run));
  return path;
}

TEST(Monitoring, PrometheusScrapesARunAndEveryQueryAnswers) {
  const ProgramResult result =
      run_shell(python() + " tests/e2e/scrape_run.py --program " + PERCHERON_PROGRAM +
                " --config " + long_run() + " --work " + testing::TempDir() + "monitoring");
  if (result.exit_code == kSkipped) GTEST_SKIP() << result.output;
  EXPECT_EQ(result.exit_code, 0) << result.output;
  RecordProperty("scrape", result.output);
  std::printf("%s", result.output.c_str());
}

TEST(Monitoring, AlertRulesPassTheirTests) {
  if (!is_there("promtool")) GTEST_SKIP() << "no promtool; tools/setup/test_programs.sh fetches it";
  const ProgramResult rules = run_shell("promtool check rules deploy/monitoring/alerts.yml");
  EXPECT_EQ(rules.exit_code, 0) << rules.output;
  const ProgramResult config = run_shell("promtool check config deploy/monitoring/prometheus.yml");
  EXPECT_EQ(config.exit_code, 0) << config.output;
  const ProgramResult tests = run_shell("promtool test rules deploy/monitoring/alerts_test.yml");
  EXPECT_EQ(tests.exit_code, 0) << tests.output;
}

// A rule without a test, or without a word on what to do, is not finished.
TEST(Monitoring, EveryAlertIsTestedAndDescribed) {
  const auto rules = system_files().read_text("deploy/monitoring/alerts.yml");
  const auto tests = system_files().read_text("deploy/monitoring/alerts_test.yml");
  const auto page = system_files().read_text("docs/monitoring.md");
  ASSERT_TRUE(rules.ok() && tests.ok() && page.ok());
  int alerts = 0;
  const std::string key = "- alert: ";
  for (size_t at = 0; (at = rules->find(key, at)) != std::string::npos; ++alerts) {
    at += key.size();
    const std::string name = rules->substr(at, rules->find('\n', at) - at);
    EXPECT_THAT(*tests, HasSubstr("alertname: " + name + "\n"));
    EXPECT_THAT(*page, HasSubstr("| `" + name + "` |"));
  }
  EXPECT_GT(alerts, 10);
}

TEST(Monitoring, SystemdAcceptsTheUnitOfTheDaemon) {
  if (!is_there("systemd-analyze"))
    GTEST_SKIP() << "no systemd-analyze; tools/setup/test_programs.sh fetches it";
  // The program need not be installed here.
  const ProgramResult result =
      run_shell("mkdir -p \"" + testing::TempDir() +
                "unit\" && sed 's|/usr/bin/percheron|/bin/true|' "
                "deploy/systemd/percheron-node.service > \"" +
                testing::TempDir() + "unit/percheron-node.service\" && systemd-analyze verify \"" +
                testing::TempDir() + "unit/percheron-node.service\"");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, Not(HasSubstr("percheron-node.service:"))) << "a key is not known";
}

TEST(Monitoring, AnAddressThatCannotBeServedIsOneErrorBeforeAnythingIsWritten) {
  const proto::Run run = make_tiny_run("unserved");
  const std::string path = testing::TempDir() + "unserved.yaml";
  write_file(path, run_config_yaml(run));
  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  socklen_t size = sizeof(address);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  for (const auto& [given, part] : {std::pair<std::string, std::string>{port, "in use"},
                                    {"127.0.0.1:99999", "65535"},
                                    {"192.0.2.1:0", "192.0.2.1"}}) {
    const ProgramResult result = run_program("train -c " + path + " --metrics " + given);
    EXPECT_EQ(result.exit_code, 1) << result.output;
    const size_t at = result.output.find("error: ");
    ASSERT_NE(at, std::string::npos) << result.output;
    EXPECT_THAT(result.output.substr(at), HasSubstr(part));
    EXPECT_EQ(result.output.find('\n', at), result.output.size() - 1) << "one line, the last";
  }
  close(taken);
  EXPECT_FALSE(system_files().exists(run.output().directory()));
}

TEST(Monitoring, TheFreePortThatWasTakenIsPrinted) {
  const proto::Run run = make_tiny_run("served");
  const std::string path = testing::TempDir() + "served.yaml";
  write_file(path, run_config_yaml(run));
  const ProgramResult result = run_program("train -c " + path + " --metrics 0");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("metrics: http://127.0.0.1:"),
                                   Not(HasSubstr("metrics: http://127.0.0.1:0/"))));
}

}  // namespace
}  // namespace percheron
