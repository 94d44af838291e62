// `percheron top` in a terminal, and what `percheron status` says of runs and devices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/actors/tiny_run.h"
#include "tests/e2e/program.h"
#include "tests/e2e/service.h"
#include "tests/model/toy_model.h"
#include "tools/run_config.h"

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

/// Two targets and two trainers, which would go on for an hour.
proto::Run watched_run() {
  proto::Run run = make_tiny_run("watched", {.samples = 200, .held_out = 12, .epochs = 9000});
  place(run, 2, 2);
  run.mutable_placement()->set_threads(1);
  run.mutable_features()->set_bytes_max(uint64_t{32} << 20);
  run.mutable_evaluate()->set_every_steps(400);
  run.mutable_checkpoint()->set_every_steps(200);
  run.mutable_train()->set_log_every_steps(50);
  return run;
}

TEST(Top, APersonWatchesARunAndSteersItByKeys) {
  const std::string config = testing::TempDir() + "watched.yaml";
  write_file(config, run_config_yaml(watched_run()));
  const char* python = std::getenv("PERCHERON_PYTHON");
  const std::string command = std::string(python != nullptr ? python : ".venv/bin/python") +
                              " tests/e2e/watch_top.py --program " + PERCHERON_PROGRAM +
                              " --config " + config + " --work " + testing::TempDir() +
                              "watch_top 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output(1 << 16, '\0');
  output.resize(std::fread(output.data(), 1, output.size(), pipe));
  EXPECT_EQ(pclose(pipe), 0) << output;
}

TEST(Status, TellsWhatEachWorkerDoesAndWhichRunHasWhichDevice) {
  const TestNode node("told");
  submit(node, service_run("service_told", 10000), "told");
  node.wait_for_step("told", 5);
  const nlohmann::json all = node.ask("status");
  const nlohmann::json run = all["runs"].at(0);
  ASSERT_EQ(run["workers"].size(), 2u) << run.dump(2);
  double busy = 0;
  for (const nlohmann::json& worker : run["workers"]) {
    EXPECT_EQ(worker["node"], "told");
    ASSERT_EQ(worker["actors"].size(), 1u);
    busy += worker["actors"][0]["busy_seconds"].get<double>();
    EXPECT_LE(worker["actors"][0]["busy_seconds"], run["activity_seconds"]);
  }
  EXPECT_GT(busy, 0);
  EXPECT_EQ(run["workers"][0]["actors"][0]["role"], "target");
  EXPECT_GT(run["feature_bytes_max"], 0);
  EXPECT_EQ(run["homes"].size(), 1u);
  const auto has = [](const char* device, const char* of) {
    return AllOf(Contains(std::pair<const std::string, nlohmann::json>("device", device)),
                 Contains(std::pair<const std::string, nlohmann::json>("run", of)));
  };
  std::vector<std::map<std::string, nlohmann::json>> devices;
  for (int i = 0; i < 100; ++i) {  // They are looked for by a process of its own.
    devices = node.ask("status")["nodes"][0]["devices"].get<decltype(devices)>();
    if (devices.at(0).count("memory_bytes") != 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_THAT(devices, AllOf(Contains(has("cpu:0", "told")), Contains(has("cpu:1", "told"))));
  EXPECT_GT(devices.at(0)["memory_bytes"], 0);
  EXPECT_GT(devices.at(0)["threads"], 0);
  EXPECT_THAT(run_program("status --state " + node.state()).output,
              AllOf(HasSubstr("node told\n"), HasSubstr("cpu:0  run told  ")));
  node.ask("stop told");
  std::string table;  // A device is free when the process that had it has ended.
  for (int i = 0; i < 100 && table.find("cpu:0  free") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    table = run_program("status --state " + node.state()).output;
  }
  EXPECT_THAT(table, HasSubstr("cpu:0  free"));
}

}  // namespace
}  // namespace percheron
