// Daemons and the processes that they start, as users meet them and as machines that die leave
// them.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "tests/actors/tiny_run.h"
#include "tests/e2e/program.h"
#include "tests/e2e/service.h"
#include "tests/model/toy_model.h"
#include "tools/run_config.h"

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Service, ASubmittedRunEndsWithTheBitsOfTrain) {
  const TestNode node("plain");
  const proto::Run run = service_run("service_plain", 4);
  EXPECT_EQ(submit(node, run, "plain"), "plain");
  const nlohmann::json done = node.wait_for("plain", "done");
  EXPECT_EQ(done["step"], done["steps_total"]);
  EXPECT_THAT(run_program("logs plain --state " + node.state()).output,
              HasSubstr("plain/cpu:1 (trainer 0)"));
  EXPECT_EQ(latest_masters(run), undisturbed(run));
}

TEST(Service, PausedResumedAndKilledItEndsWithTheSameBits) {
  const TestNode node("killed");
  const proto::Run run = lasting_run(node, "service_killed", 2);
  const std::string name = submit(node, run, "killed");
  node.wait_for_step(name, 5);
  node.kill_process("worker killed/cpu:0", SIGKILL);
  const int64_t paused = node.ask("pause killed")["step"].get<int64_t>();
  EXPECT_EQ(node.ask("pause killed")["step"], paused);  // It may be said twice.
  EXPECT_EQ(node.status(name)["state"], "paused");
  EXPECT_EQ(node.ask("snapshot killed")["step"], paused);
  EXPECT_EQ(node.ask("snapshot killed")["step"], paused);  // There is one of this step already.
  EXPECT_EQ(node.status(name)["step"], paused);
  node.ask("resume killed");
  node.wait_for_step(name, paused + 5);
  node.kill_process("worker killed/cpu:1", SIGKILL);
  node.wait_for_step(name, paused + 10);
  node.kill_process("supervisor killed", SIGKILL);
  node.wait_for(name, "running");
  node.ask("pause killed --release-devices");
  EXPECT_EQ(node.status(name)["state"], "paused");
  node.ask("resume killed");
  node.wait_for(name, "done");
  EXPECT_EQ(latest_masters(run), undisturbed(run));
}

/// What is served at `path` of the node's metrics.
std::string fetch(const TestNode& node, const std::string& path) {
  const std::string before = "metrics: http://127.0.0.1:";
  const std::string log = node.log();
  const size_t at = log.find(before);
  EXPECT_NE(at, std::string::npos) << log;
  if (at == std::string::npos) return {};
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(log.substr(at + before.size()))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n";
  EXPECT_EQ(send(socket, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  std::array<char, 4096> buffer;
  for (ssize_t count; (count = recv(socket, buffer.data(), buffer.size(), 0)) > 0;) {
    answer.append(buffer.data(), static_cast<size_t>(count));
  }
  close(socket);
  return answer;
}

TEST(Service, ANodeServesTheMetricsOfItsRuns) {
  const TestNode node("metrics", {"--metrics", "0"});
  EXPECT_THAT(fetch(node, "/readyz"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("serving")));
  EXPECT_THAT(fetch(node, "/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(fetch(node, "/metrics"), AllOf(HasSubstr("percheron_node_devices_in_use 0"),
                                             Not(HasSubstr("percheron_state"))));
  submit(node, service_run("service_metrics", 10000), "seen");
  node.wait_for_step("seen", 5);
  node.kill_process("worker seen/cpu:0", SIGKILL);
  node.wait_for_step("seen", node.status("seen")["step"].get<int64_t>() + 5);
  node.ask("pause seen");
  const std::string page = fetch(node, "/metrics");
  const std::string step = std::to_string(node.status("seen")["step"].get<int64_t>());
  for (const std::string& line :
       {std::string(R"(percheron_state{run="seen",state="paused"} 1)"),
        std::string(R"(percheron_state{run="seen",state="running"} 0)"),
        R"(percheron_step{run="seen"} )" + step + "\n",
        std::string(R"(percheron_run_workers{run="seen",state="ready"} 2)"),
        std::string(
            R"(percheron_run_worker_restarts_total{run="seen",node="metrics",device="cpu:0"} 1)"),
        std::string(
            R"(percheron_run_worker_restarts_total{run="seen",node="metrics",device="cpu:1"} 0)"),
        std::string(R"(percheron_supervisor_restarts_total{run="seen"} 0)"),
        std::string("percheron_node_devices_in_use 2")}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
  for (const char* name : {"percheron_loss{", "percheron_run_tokens_per_second{",
                           "percheron_run_acceptance_length{", "percheron_node_feature_bytes "}) {
    EXPECT_THAT(page, HasSubstr(name));
  }
  // Once the first micro-batches were released, their memory is used again.
  const std::string used =
      R"(percheron_node_feature_regions_total{kind="published",memory="used"} )";
  EXPECT_THAT(page, AllOf(HasSubstr(used), Not(HasSubstr(used + "0\n"))));
  node.ask("stop seen");
  EXPECT_THAT(fetch(node, "/metrics"),
              AllOf(HasSubstr(R"(percheron_state{run="seen",state="stopped"} 1)"),
                    Not(HasSubstr("percheron_loss{"))));
}

TEST(Service, ADaemonThatWasKilledGoesOnWithItsRuns) {
  TestNode node("again");
  const proto::Run run = service_run("service_again");
  const std::string name = submit(node, run, "again");
  node.wait_for_step(name, 25);
  node.kill();
  node.start();
  node.wait_for(name, "done");
  EXPECT_EQ(latest_masters(run), undisturbed(run));
}

TEST(Service, ADaemonThatIsStoppedLetsItsRunsWriteACheckpoint) {
  TestNode node("stopped");
  proto::Run run = service_run("service_stopped", 60);
  run.mutable_checkpoint()->set_every_steps(0);
  submit(node, run, "stopped");
  node.wait_for_step("stopped", 5);
  node.stop();
  const std::string log = join_path(node.state(), "logs/stopped/supervisor.log");
  EXPECT_THAT(*system_files().read_text(log), HasSubstr("with a checkpoint"));
  node.start();
  node.wait_for("stopped", "done");
  EXPECT_THAT(*system_files().read_text(log), HasSubstr("resum"));
  EXPECT_EQ(latest_masters(run), undisturbed(run));
}

TEST(Service, RunsWaitForTheDevicesThatTheyName) {
  const TestNode node("queue");
  const proto::Run first = service_run("service_first", 10000),
                   second = service_run("service_second", 2);
  submit(node, first, "first");
  node.wait_for_step("first", 1);
  submit(node, second, "second");
  const nlohmann::json waiting = node.wait_for("second", "queued");
  EXPECT_THAT(waiting["message"].get<std::string>(), HasSubstr("which run first has"));
  EXPECT_THAT(node.ask("stop first")["text"].get<std::string>(), HasSubstr("stopped"));
  node.wait_for("second", "done");
  EXPECT_EQ(node.status("first")["state"], "stopped");
}

TEST(Service, BadInputIsOneError) {
  const TestNode node("bad");
  const std::string at = " --state " + node.state();
  const auto error_of = [&](const std::string& arguments) {
    const ProgramResult result = run_program(arguments + at);
    EXPECT_EQ(result.exit_code, 1) << arguments << result.output;
    return result.output;
  };
  EXPECT_THAT(error_of("status nobody"), HasSubstr("there is no run nobody"));
  EXPECT_THAT(error_of("pause nobody"), HasSubstr("there is no run nobody"));
  EXPECT_THAT(error_of("logs nobody"), HasSubstr("there is no run nobody"));
  proto::Run run = service_run("service_bad", 1);
  const std::string path = testing::TempDir() + "service_bad.yaml";
  run.mutable_placement()->set_targets(0, "elsewhere/cpu:0");
  write_file(path, run_config_yaml(run));
  EXPECT_THAT(error_of("submit -c " + path), HasSubstr("node 'elsewhere'"));
  run.mutable_placement()->set_targets(0, "gpu:0");
  write_file(path, run_config_yaml(run));
  EXPECT_THAT(error_of("submit -c " + path), HasSubstr("placement.targets: 'gpu:0'"));
  run.mutable_placement()->set_targets(0, "cpu:0");
  write_file(path, run_config_yaml(run));
  EXPECT_THAT(error_of("submit --name a/b -c " + path), HasSubstr("'a/b' can't name a run"));
  EXPECT_THAT(run_program("status --state " + testing::TempDir() + "nowhere").output,
              HasSubstr("start one with `percheron node`"));
  EXPECT_THAT(run_program("worker").output, HasSubstr("started by `percheron node` alone"));
}

TEST(Service, ARunThatCanNotStartSaysWhy) {
  const TestNode node("unstartable");
  proto::Run run = service_run("service_unstartable", 1);
  run.mutable_target()->set_path("/nowhere");
  submit(node, run, "unstartable");
  EXPECT_THAT(node.wait_for("unstartable", "failed")["message"].get<std::string>(),
              HasSubstr("/nowhere"));
}

/// The value of a metric, by its name and labels, on a page.
int metric(const std::string& page, const std::string& name) {
  const size_t at = page.find("\n" + name + " ");  // not where it is explained
  return at == std::string::npos ? -1 : std::stoi(page.substr(at + name.size() + 2));
}

TEST(Service, FeaturesTravelThroughMemoryThatIsUsedAgain) {
  const std::string secret = testing::TempDir() + "service_memory.secret";
  write_file(secret, std::string(64, 'm') + "\n");
  std::vector<std::string> options = percheron::member(secret);
  options.insert(options.end(), {"--metrics", "0"});
  const TestNode maker("maker", options);
  options.insert(options.end(), {"--join", "127.0.0.1:" + std::to_string(port_of(maker))});
  const TestNode reader("reader", options);
  const proto::Run plain = service_run("service_memory");
  proto::Run run = plain;
  run.mutable_placement()->set_targets(0, "maker/cpu:0");
  run.mutable_placement()->set_trainers(0, "reader/cpu:1");
  submit_when_known(maker, run, "through");
  maker.wait_for("through", "done");
  EXPECT_EQ(latest_masters(run), undisturbed(plain));
  const std::string made = fetch(maker, "/metrics"), pulled = fetch(reader, "/metrics");
  const std::string regions = "percheron_node_feature_regions_total{kind=";
  // How far the target was ahead depends on time; the reader needs a few.
  EXPECT_GT(metric(made, regions + R"("published",memory="used"})"), 0);
  const int fresh = metric(pulled, regions + R"("pulled",memory="new"})");
  EXPECT_GT(fresh, 0);
  EXPECT_GT(metric(pulled, regions + R"("pulled",memory="used"})"), 5 * fresh);
  EXPECT_GT(metric(pulled, "percheron_node_idle_region_bytes"), 0);
}

/// The options of a node of a cluster whose first node listens on `port`.
std::vector<std::string> member(const std::string& certificates, int port, int join = 0) {
  std::vector<std::string> options = {"--certs", certificates, "--listen",
                                      "127.0.0.1:" + std::to_string(port)};
  if (join != 0) options.insert(options.end(), {"--join", "127.0.0.1:" + std::to_string(join)});
  return options;
}

TEST(Service, TwoMachinesShareARunAndOneMayDie) {
  const std::string certificates = testing::TempDir() + "service_certs";
  ASSERT_TRUE(system_files().remove_all(certificates).ok());
  ASSERT_EQ(run_program("certs init " + certificates).exit_code, 0);
  for (const char* name : {"left", "right", "operator"}) {
    ASSERT_EQ(
        run_program("certs issue " + certificates + " " + name + " --address 127.0.0.1").exit_code,
        0);
  }
  const TestNode left("left", member(certificates, 0));
  TestNode right("right", member(certificates, 0, port_of(left)));
  proto::Run run = service_run("service_two", 30);
  run.mutable_train()->set_micro_batches_per_step(4);
  run.mutable_placement()->set_targets(0, "left/cpu:0");
  run.mutable_placement()->add_targets("right/cpu:0");
  run.mutable_placement()->set_trainers(0, "left/cpu:1");
  run.mutable_placement()->add_trainers("right/cpu:1");
  const std::string config = testing::TempDir() + "service_two.yaml";
  write_file(config, run_config_yaml(run));
  EXPECT_THAT(run_program("submit -c " + config + " --state " + left.state()).output,
              HasSubstr("cluster.trusted_network: true"));
  run.mutable_cluster()->set_trusted_network(true);
  write_file(config, run_config_yaml(run));
  std::string submitted;
  for (int i = 0; i < 100 && submitted.empty(); ++i) {  // until both know each other
    const ProgramResult result =
        run_program("submit --name two -c " + config + " --state " + left.state());
    if (result.exit_code == 0) submitted = result.output;
    usleep(100'000);
  }
  ASSERT_FALSE(submitted.empty()) << left.log() << right.log();
  left.wait_for_step("two", 10);
  // Any node answers for any run.
  const std::string there =
      " --json --node 127.0.0.1:" + std::to_string(port_of(right)) + " --certs " + certificates;
  EXPECT_THAT(run_program("pause two" + there).output, HasSubstr("is paused"));
  EXPECT_THAT(run_program("status two" + there).output, HasSubstr("\"state\": \"paused\""));
  EXPECT_THAT(run_program("resume two" + there).output, HasSubstr("is running"));
  right.kill();
  left.wait_for_step("two", left.status("two")["step"].get<int64_t>() + 5);
  const nlohmann::json done = left.wait_for("two", "done");
  EXPECT_EQ(done["step"], done["steps_total"]);
  // Which trainer computes what depends on time, and the sums' last bits on that.
  RecordingObserver observer;
  run.mutable_output()->set_directory(run.output().directory() + "_alone");
  run.mutable_placement()->clear_targets();
  run.mutable_placement()->clear_trainers();
  run.mutable_placement()->add_targets("cpu:0");
  run.mutable_placement()->add_trainers("cpu:0");
  ASSERT_TRUE(train_tiny(run, observer).ok());
  EXPECT_NEAR(done["loss"].get<double>(), observer.steps().back().loss,
              1e-3 * observer.steps().back().loss);
}

}  // namespace
}  // namespace percheron
