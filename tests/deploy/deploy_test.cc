// Percheron as it is installed and operated: from its package, under Slurm, in Kubernetes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "base/file_system.h"
#include "tests/actors/tiny_run.h"
#include "tests/e2e/program.h"
#include "tests/model/toy_model.h"
#include "tools/run_config.h"

namespace percheron {
namespace {

// As the scripts say that a program that they need is absent; their output says which.
constexpr int kSkipped = 77;

/// A run in a file; its devices are those of whoever tests.
std::string config_of(const std::string& name, int64_t epochs) {
  proto::Run run = make_tiny_run(name, {.samples = 24, .held_out = 4, .epochs = epochs});
  run.mutable_placement()->clear_targets();
  run.mutable_placement()->clear_trainers();
  run.mutable_placement()->set_threads(1);
  run.mutable_cluster()->set_trusted_network(true);
  const std::string path = testing::TempDir() + name + ".yaml";
  write_file(path, run_config_yaml(run));
  return path;
}

/// A folder of the test's own, which the script makes.
std::string work(const std::string& name) { return testing::TempDir() + "deploy_" + name; }

#define EXPECT_SCRIPT_PASSES(command)                                \
  do {                                                               \
    const ProgramResult result = run_command(command);               \
    if (result.exit_code == kSkipped) GTEST_SKIP() << result.output; \
    EXPECT_EQ(result.exit_code, 0) << result.output;                 \
  } while (false)

TEST(Deploy, AnInstalledProgramWorksWhereverItIsMovedWithoutItsSource) {
  EXPECT_SCRIPT_PASSES("tests/deploy/installed.sh " PERCHERON_BUILD " " + work("installed") + " " +
                       config_of("installed", 2));
}

TEST(Deploy, TheDebianPackageHoldsWhatItShall) {
  EXPECT_SCRIPT_PASSES("tests/deploy/package.sh " PERCHERON_BUILD " " + work("package"));
}

TEST(Deploy, ASlurmJobTrainsOnAllItsNodes) {
  EXPECT_SCRIPT_PASSES("tests/deploy/slurm.sh " PERCHERON_PROGRAM " " + work("slurm") + " " +
                       config_of("slurm", 3) + " done");
}

TEST(Deploy, ASlurmJobThatEndsLeavesACheckpoint) {
  EXPECT_SCRIPT_PASSES("tests/deploy/slurm.sh " PERCHERON_PROGRAM " " + work("slurm_ends") + " " +
                       config_of("slurm_ends", 10000) + " stopped");
}

TEST(Deploy, TheKubernetesExampleIsValid) { EXPECT_SCRIPT_PASSES("tests/deploy/kubernetes.sh"); }

TEST(Deploy, EveryScriptPassesShellcheck) { EXPECT_SCRIPT_PASSES("tests/deploy/scripts.sh"); }

TEST(Deploy, TheDockerfileIsValid) { EXPECT_SCRIPT_PASSES("tests/deploy/docker.sh"); }

}  // namespace
}  // namespace percheron
