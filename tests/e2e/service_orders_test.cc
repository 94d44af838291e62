// Orders that take longer than anybody waits, and what they leave.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "tests/actors/tiny_run.h"
#include "tests/e2e/program.h"
#include "tests/e2e/service.h"
#include "tests/model/toy_model.h"
#include "tools/node_client.h"

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Its steps take seconds on any machine: each is an epoch.
proto::Run slow_run(const std::string& name) {
  proto::Run run = make_tiny_run(
      name, {.samples = 6000, .held_out = 6, .epochs = 1000, .micro_batches_per_step = 100'000});
  run.mutable_placement()->clear_targets();
  run.mutable_placement()->clear_trainers();
  run.mutable_placement()->add_targets("cpu:0");
  run.mutable_placement()->add_trainers("cpu:1");
  run.mutable_placement()->set_threads(1);
  return run;
}

/// In a step, which an order has to wait for: what comes before it ends sooner.
void wait_for_training(const TestNode& node) {
  node.wait_until([&] {
    const nlohmann::json run = node.status("slow");
    return run["state"] == "running" && run["phase"] == "training";
  });
}

std::string error_of(const TestNode& node, const std::string& arguments) {
  const ProgramResult result = run_program(arguments + " --state " + node.state());
  EXPECT_EQ(result.exit_code, 1) << arguments << result.output;
  return result.output;
}

std::string supervisor_log(const TestNode& node, const std::string& run) {
  return read_file(node.state() + "/logs/" + run + "/supervisor.log");
}

TEST(ServiceOrders, APauseThatTakesTooLongStandsAndResumeTakesItBack) {
  const TestNode node("slow");
  submit(node, slow_run("service_slow"), "slow");
  wait_for_training(node);
  EXPECT_THAT(
      error_of(node, "pause slow --timeout 1"),
      HasSubstr("run slow has not done it within 1 s; the order stands: it pauses after the "
                "step that is under way"));
  node.ask("resume slow");
  wait_for_training(node);
  EXPECT_THAT(error_of(node, "pause slow --release-devices --timeout 1"),
              AllOf(HasSubstr("the order stands: it writes a checkpoint after the step that is "
                              "under way and gives its devices back"),
                    HasSubstr("`percheron resume slow` lets it go on after that")));
  EXPECT_THAT(error_of(node, "resume slow --timeout 1"),
              HasSubstr("run slow has to end first, after its checkpoint"));
  node.wait_until(
      [&] { return supervisor_log(node, "slow").find("resuming from") != std::string::npos; });
  EXPECT_EQ(node.wait_for("slow", "running")["state"], "running");
  node.ask("stop slow --now");
  const nlohmann::json stopped = node.status("slow");
  EXPECT_EQ(stopped["state"], "stopped") << "who asks for an end gets no failure";
  EXPECT_EQ(stopped["message"], "at once, without a checkpoint");
}

TEST(ServiceOrders, ADrainThatTakesTooLongStandsAndUndoLetsTheRunGoOn) {
  const TestNode node("drained_slowly");
  submit(node, slow_run("service_drained_slowly"), "slow");
  wait_for_training(node);
  EXPECT_THAT(
      error_of(node, "drain drained_slowly --timeout 1"),
      AllOf(HasSubstr("not all runs have left it"), HasSubstr("with --undo it takes workers"),
            HasSubstr("the order stands: it writes a checkpoint after the step that is "
                      "under way, and waits then")));
  node.wait_for("slow", "queued");
  EXPECT_EQ(node.status("slow")["message"], "node drained_slowly is drained");
  node.ask("drain drained_slowly --undo");
  node.wait_for("slow", "running");
  EXPECT_THAT(supervisor_log(node, "slow"), HasSubstr("resuming from"));
  node.ask("stop slow --now");
}

TEST(ServiceOrders, LogsOfARunThatWasNeverStartedAreOneLine) {
  const TestNode node("mute");
  submit(node, service_run("service_busy", 10000), "busy");
  node.wait_for_step("busy", 1);
  submit(node, service_run("service_mute", 1), "mute");
  node.wait_for("mute", "queued");
  EXPECT_EQ(
      error_of(node, "logs mute"),
      "error: run mute has not been started yet; it is queued: waits for mute/cpu:0, which run "
      "busy has\n");
  EXPECT_THAT(error_of(node, "logs busy --device cpu:7"),
              StartsWith("error: run busy has not been started on cpu:7 yet; it is running"));
  node.ask("stop busy --now");
  EXPECT_THAT(run_program("logs -f mute --state " + node.state()).output,
              AllOf(HasSubstr("done: "), Not(HasSubstr("error"))));
}

// They waited until its report was written, for a step that never came.
TEST(ServiceOrders, WhatIsAskedOfARunAfterItsLastStepIsAnsweredAtOnce) {
  const TestNode node("reporting");
  proto::Run run = service_run("service_reporting", 1);
  run.mutable_evaluate()->set_decode_conversations(0);
  run.mutable_evaluate()->set_new_tokens_max(100);
  submit(node, run, "reporting");
  node.wait_until([&] {
    const nlohmann::json status = node.status("reporting");
    return status["state"] == "done" || status["phase"] == "ended";
  });
  for (const char* order : {"snapshot", "pause"}) {
    const ProgramResult result =
        run_program(std::string(order) + " reporting --timeout 10 --state " + node.state());
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output, AnyOf(HasSubstr("has done its last step and decodes prompts"),
                                     HasSubstr("run reporting is done")));
  }
  node.ask("stop reporting --timeout 10");
  node.wait_for("reporting", "done");
}

TEST(ServiceOrders, ARunSaysHowManySamplesCameFromTheCacheAsTrainDoes) {
  const TestNode node("counting");
  proto::Run run = service_run("service_counting", 3);
  run.mutable_features()->set_cache_memory_bytes_max(uint64_t{64} << 20);
  submit(node, run, "counting");
  node.wait_for("counting", "done");
  const auto counters_of = [](const proto::Run& of) {
    nlohmann::json counters;
    std::istringstream lines(read_file(of.output().directory() + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json entry = nlohmann::json::parse(line);
      if (entry.contains("counters")) counters = entry["counters"];
    }
    return counters;
  };
  const nlohmann::json counters = counters_of(run);
  EXPECT_EQ(counters["samples_from_cache_since_start"], 96) << counters;
  EXPECT_THAT(supervisor_log(node, "counting"),
              HasSubstr("features: 96 samples were taken from the cache"));
}

/// Two nodes, of which `second` has nothing but a target of a run of `first`.
class ServiceGuest : public testing::Test {
 protected:
  static std::string secret() {
    const std::string path = testing::TempDir() + "service_guest.secret";
    write_file(path, std::string(64, 'c'));
    return path;
  }
  void start_run(const std::string& name) {
    proto::Run run = service_run("service_" + name, 10000);
    run.mutable_placement()->set_targets(0, "first/cpu:0");
    run.mutable_placement()->add_targets("second/cpu:0");
    run.mutable_placement()->set_trainers(0, "first/cpu:1");
    submit_when_known(first, run, name);
    first.wait_for_step(name, 5);
  }

  TestNode first{"first", member(secret())};
  TestNode second{"second", member(secret(), port_of(first))};
};

TEST_F(ServiceGuest, ADaemonThatHasOnlyWorkersOfAnothersRunEndsAtOnce) {
  start_run("left");
  const auto begin = std::chrono::steady_clock::now();
  second.stop();
  // Runs of its own would get a minute to write a checkpoint.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  first.wait_for_step("left", first.status("left")["step"].get<int64_t>() + 20);
  second.start();
  first.wait_until([&] {
    const nlohmann::json status = first.status("left");
    for (const nlohmann::json& worker : status["workers"]) {
      if (worker["state"] != "ready") return false;
    }
    return true;
  });
  first.ask("stop left --now");
}

// It hears nothing of the end, and keeps nothing for ever.
TEST_F(ServiceGuest, FeaturesOfARunThatEndsUnheardAreFreed) {
  start_run("unheard");
  const auto features = [&] {
    int count = 0;
    const std::string directory = "/proc/" + std::to_string(second.pid()) + "/fd/";
    const Result<std::vector<std::string>> names = system_files().list(directory);
    EXPECT_TRUE(names.ok());
    for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
      std::error_code gone;
      const auto target = std::filesystem::read_symlink(directory + name, gone);
      count += target.string().starts_with("/memfd:") ? 1 : 0;
    }
    return count;
  };
  second.wait_until([&] { return features() > 0; });
  second.signal(SIGSTOP);
  first.wait_for_log("node second at");
  first.ask("stop unheard --now");
  second.signal(SIGCONT);
  second.wait_until([&] { return features() == 0; });
}

// Each question was a thread that stayed, and after a thousand nobody was answered any more.
TEST_F(ServiceGuest, QuestionsOfAnotherNodeAreAnsweredForEver) {
  start_run("asked");
  NodeClient client = NodeClient::connect(second.state()).value();
  for (int i = 0; i < 1100; ++i) {
    proto::ControlRequest request;
    request.mutable_list()->set_run("asked");
    request.set_timeout_seconds(20);
    const Result<proto::ControlReply> reply =
        client.ask(std::move(request), std::chrono::seconds(60));
    ASSERT_TRUE(reply.ok()) << i << reply.status().message();
    ASSERT_EQ(reply->runs_size(), 1) << i;
    ASSERT_EQ(reply->runs(0).report().state(), proto::RunReport::RUNNING) << i;
  }
  first.ask("stop asked --now");
}

}  // namespace
}  // namespace percheron
