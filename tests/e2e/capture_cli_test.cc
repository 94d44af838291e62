// `percheron capture` as a user meets it, and as a machine that dies leaves it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "base/file_system.h"
#include "base/random.h"
#include "data/feature_file.h"
#include "tests/actors/offline_features.h"
#include "tests/actors/tiny_run.h"
#include "tests/e2e/program.h"
#include "tests/model/toy_model.h"
#include "tools/run_config.h"

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string config_of(const proto::Run& run, const std::string& name) {
  const std::string path = testing::TempDir() + name + ".yaml";
  write_file(path, run_config_yaml(run));
  return path;
}

std::vector<std::string> feature_files(const std::string& directory) {
  std::vector<std::string> files;
  const auto names = system_files().list(directory);
  if (!names.ok()) return files;
  for (const std::string& name : *names) {
    if (sample_of_file(name) >= 0 || is_shard_name(name)) files.push_back(name);
  }
  return files;
}

/// `percheron capture` in a process that can be killed.
class Child {
 public:
  Child(const std::string& config, const std::string& out, const std::string& layout) {
    pid_ = fork();
    if (pid_ != 0) return;
    if (!std::freopen((out + ".log").c_str(), "w", stdout)) _exit(3);
    dup2(STDOUT_FILENO, STDERR_FILENO);
    execl(PERCHERON_PROGRAM, PERCHERON_PROGRAM, "capture", "-c", config.c_str(), "--out",
          out.c_str(), "--layout", layout.c_str(), "--shard-bytes", "100kB", nullptr);
    _exit(3);
  }
  void kill() const { ::kill(pid_, SIGKILL); }
  bool ended() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == pid_;
  }
  /// Its exit status; -SIGNAL when a signal ended it.
  int wait() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
};

void expect_same_files_after_kills(const std::string& layout, uint64_t seed) {
  constexpr int kKills = 6;
  const proto::Run run = make_tiny_run("capture_kill", {.samples = 600});
  const std::string config = config_of(run, "capture_kill");
  const std::string whole = no_directory("capture_kill_whole"), out = no_directory("capture_kill");
  ASSERT_EQ(Child(config, whole, layout).wait(), 0) << read_file(whole + ".log");
  Random random(seed);
  int killed_between = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " kill " << kill);
    const size_t before = feature_files(out).size();
    const Child child(config, out, layout);
    while (feature_files(out).size() <= before && !child.ended()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(15'000)));
    child.kill();
    const int status = child.wait();
    EXPECT_TRUE(status == 0 || status == -SIGKILL) << read_file(out + ".log");
    const std::vector<std::string> files = feature_files(out);
    if (status == -SIGKILL && !files.empty()) ++killed_between;
    for (const std::string& file : files) {
      const auto opened = FeatureFile::open(system_files(), join_path(out, file));
      EXPECT_TRUE(opened.ok()) << opened.status().message();
    }
  }
  EXPECT_GE(killed_between, kKills / 3) << "kills that fall outside prove nothing";
  ASSERT_EQ(Child(config, out, layout).wait(), 0) << read_file(out + ".log");
  EXPECT_THAT(read_file(out + ".log"), HasSubstr("were there already"));
  EXPECT_EQ(contents_of(out), contents_of(whole));
}

TEST(CaptureProgram, KilledAtRandomMomentsItEndsWithTheSameFiles) {
  RecordProperty("seed", "20250311");
  expect_same_files_after_kills("samples", 20250311);
}

TEST(CaptureProgram, KilledAtRandomMomentsItEndsWithTheSameShards) {
  RecordProperty("seed", "20250312");
  expect_same_files_after_kills("shards", 20250312);
}

TEST(CaptureProgram, PlansCapturesAndTrainsFromWhatItCaptured) {
  const proto::Run run = make_tiny_run("capture_command", {.held_out = 3});
  const std::string config = config_of(run, "capture_command");
  const std::string out = no_directory("capture_command_files");
  const std::string capture = "capture -c " + config + " --out " + out;

  const ProgramResult plan = run_program(capture + " --plan");
  EXPECT_EQ(plan.exit_code, 0) << plan.output;
  EXPECT_THAT(plan.output, AllOf(HasSubstr("24 samples"), HasSubstr("at most"),
                                 HasSubstr("states 1/2/3 and the last"), HasSubstr("left for")));
  EXPECT_THAT(plan.output, Not(HasSubstr("--shard-bytes")));
  EXPECT_THAT(run_program(capture + " --plan --shard-bytes 1MiB").output,
              HasSubstr("--shard-bytes is not used"));
  EXPECT_THAT(run_program(capture + " --plan --shard-bytes 1MiB --layout shards").output,
              Not(HasSubstr("is not used")));
  EXPECT_FALSE(system_files().exists(out));

  const ProgramResult refused = run_program(capture + " --bytes-max 100kB");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.output, AllOf(HasSubstr("error: "), HasSubstr("--bytes-max is 97.7 KiB"),
                                    HasSubstr("--partial")));
  EXPECT_FALSE(system_files().exists(out));

  const ProgramResult part = run_program(capture + " --bytes-max 100kB --partial");
  EXPECT_EQ(part.exit_code, 0) << part.output;
  EXPECT_THAT(part.output, HasSubstr("don't fit into the budget"));
  const ProgramResult hybrid =
      run_program("train --plan -c " + config + " features.from=[" + out + "]");
  EXPECT_EQ(hybrid.exit_code, 0) << hybrid.output;
  EXPECT_THAT(hybrid.output, AllOf(HasSubstr("of 24 samples lie in"), HasSubstr("are computed")));

  const ProgramResult rest = run_program(capture);
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_THAT(rest.output, AllOf(HasSubstr("24 of 24 samples (100%)"), HasSubstr("eta"),
                                 HasSubstr("features.from=[" + out + "]")));
  const ProgramResult trained = run_program("train -c " + config + " features.from=[" + out + "]");
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_THAT(trained.output, AllOf(HasSubstr("features: 24 of 24 samples lie in"),
                                    HasSubstr("48 samples were taken from files, 0 were not")));
}

TEST(CaptureProgram, FeaturesOfEightBitWeightsAreForRunsOfEightBitWeights) {
  const proto::Run run = make_tiny_run("capture_int8_command", {.held_out = 3});
  const std::string config = config_of(run, "capture_int8_command");
  const std::string out = no_directory("capture_int8_command_files");
  const std::string said = "target weights: int8, one scale per output channel; top-1 agreement";
  const ProgramResult captured =
      run_program("capture -c " + config + " --out " + out + " target.weights=int8");
  EXPECT_EQ(captured.exit_code, 0) << captured.output;
  EXPECT_THAT(captured.output, HasSubstr(said));

  const std::string train = "train -c " + config + " features.from=[" + out + "]";
  const ProgramResult refused = run_program(train);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.output, AllOf(HasSubstr("error: "), HasSubstr("target.weights")));
  const ProgramResult plan = run_program(train + " target.weights=int8 --plan");
  EXPECT_EQ(plan.exit_code, 0) << plan.output;
  EXPECT_THAT(plan.output, AllOf(HasSubstr("24 of 24 samples lie in"),
                                 HasSubstr("layers in int8, one scale per output channel")));
  const ProgramResult trained = run_program(train + " target.weights=int8");
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_THAT(trained.output, AllOf(HasSubstr(said), HasSubstr(" held-out tokens, "),
                                    HasSubstr("48 samples were taken from files, 0 were not")));
  const std::string report = read_file(join_path(run.output().directory(), "report.json"));
  EXPECT_THAT(report, AllOf(HasSubstr("target_weights_compared_tokens"),
                            HasSubstr("target_weights_same_top1")));
}

TEST(CaptureProgram, BadInputIsOneError) {
  const std::string config = config_of(make_tiny_run("capture_bad"), "capture_bad");
  const std::string out = no_directory("capture_bad_files");
  const std::string capture = "capture -c " + config + " --out " + out;
  for (const auto& [arguments, part] : std::vector<std::pair<std::string, std::string>>{
           {" --bytes-max lots", "--bytes-max is 'lots'"},
           {" --partial", "--bytes-max"},
           {" --layout heap", "--layout"},
           {" --shard-bytes 0 --layout shards", "--shard-bytes"},
           {" drafter.capture=[9]", "captured layers [9]"}}) {
    const ProgramResult result = run_program(capture + arguments);
    EXPECT_NE(result.exit_code, 0) << arguments;
    EXPECT_THAT(result.output, AllOf(HasSubstr("error: "), HasSubstr(part)));
    EXPECT_FALSE(system_files().exists(out)) << arguments;
  }
  EXPECT_THAT(run_program("capture -c " + config).output, HasSubstr("--out"));
}

}  // namespace
}  // namespace percheron
