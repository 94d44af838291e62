// Processes that live and do nothing, as a stopped one, a machine that swaps and a deadlock look.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/actors/tiny_run.h"
#include "tests/e2e/service.h"

namespace percheron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr unsigned kStoppedSeconds = 4;  // more than the silence that is taken for death

TEST(ServiceSilence, StoppedProcessesAreEndedAndTheRunEndsWithTheSameBits) {
  const TestNode node("silent");
  const proto::Run run = lasting_run(node, "service_silent", 3);
  const std::string name = submit(node, run, "silent");
  int64_t step = 5;
  for (const std::string process :
       {"worker silent/cpu:0", "worker silent/cpu:1", "supervisor silent"}) {
    node.wait_for_step(name, step);
    node.kill_process(process, SIGSTOP);
    node.wait_for_log(process + " has been silent for 3 s: it is ended");
    node.wait_for(name, "running");
    step = node.status(name)["step"].get<int64_t>() + 5;
  }
  node.wait_for(name, "done");
  EXPECT_EQ(latest_masters(run), undisturbed(run));
}

TEST(ServiceSilence, ADaemonThatWasStoppedItselfBlamesNobody) {
  const TestNode node("frozen");
  const proto::Run run = service_run("service_frozen", 60);
  const std::string name = submit(node, run, "frozen");
  node.wait_for_step(name, 5);
  node.signal(SIGSTOP);
  sleep(kStoppedSeconds);
  node.signal(SIGCONT);
  node.wait_for(name, "done");
  EXPECT_THAT(node.log(), Not(HasSubstr("silent")));
  EXPECT_EQ(latest_masters(run), undisturbed(run));
}

}  // namespace
}  // namespace percheron
