// Nodes that are to be left alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/actors/tiny_run.h"
#include "tests/e2e/program.h"
#include "tests/e2e/service.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ServiceDrain, ARunThatHasNowhereToGoWaitsAndGoesOnWithTheSameBits) {
  const TestNode node("lonely");
  const proto::Run run = lasting_run(node, "service_lonely", 1);
  submit(node, run, "lonely");
  node.wait_for_step("lonely", 5);
  EXPECT_THAT(node.ask("drain lonely")["text"].get<std::string>(),
              HasSubstr("run lonely waits, after a checkpoint"));
  node.ask("drain lonely");  // It may be said twice.
  const nlohmann::json waiting = node.status("lonely");
  EXPECT_EQ(waiting["state"], "queued");
  EXPECT_EQ(waiting["message"], "node lonely is drained");
  EXPECT_THAT(run_program("status --state " + node.state()).output,
              HasSubstr("node lonely is drained\n"));
  node.ask("drain lonely --undo");
  node.wait_for("lonely", "done");
  EXPECT_EQ(latest_masters(run), undisturbed(run));
}

bool says_that_one_is_drained(const TestNode& node) {
  return node.ask("status")["nodes"].dump().find("\"drained\":true") != std::string::npos;
}

TEST(ServiceDrain, WorkersAndThenTheSupervisorGoToTheOtherNode) {
  const std::string secret = testing::TempDir() + "service_drain.secret";
  write_file(secret, std::string(64, 'a') + "\n");
  const TestNode first("first", member(secret));
  const TestNode second("second", member(secret, port_of(first)));
  const proto::Run plain = lasting_run(first, "service_drain", 3);
  proto::Run run = plain;
  run.mutable_placement()->set_targets(0, "first/cpu:0");
  run.mutable_placement()->add_targets("second/cpu:0");
  run.mutable_placement()->set_trainers(0, "first/cpu:1");
  submit_when_known(first, run, "moved");
  first.wait_for_step("moved", 5);
  EXPECT_THAT(first.ask("drain second")["text"].get<std::string>(),
              HasSubstr("run moved has left"));
  first.wait_for_step("moved", first.status("moved")["step"].get<int64_t>() + 3);
  // Nodes tell each other of it twice a second.
  first.wait_until([&] { return says_that_one_is_drained(first); });
  EXPECT_THAT(run_program("scale moved --targets +second/cpu:0 --state " + first.state()).output,
              HasSubstr("node second is drained"));
  first.ask("drain second --undo");
  first.wait_until([&] { return !says_that_one_is_drained(first); });
  const nlohmann::json back = first.ask(
      "scale moved --targets +second/cpu:0 --trainers -first/cpu:1 "
      "--trainers +second/cpu:1");
  EXPECT_THAT(back["targets"].get<std::vector<std::string>>(),
              ElementsAre("first/cpu:0", "second/cpu:0"));
  EXPECT_THAT(first.ask("drain first")["text"].get<std::string>(),
              HasSubstr("run moved is on node second now"));
  EXPECT_EQ(second.status("moved")["node"], "second");
  const nlohmann::json done = second.wait_for("moved", "done");
  EXPECT_EQ(done["step"], done["steps_total"]);
  EXPECT_EQ(latest_masters(run), undisturbed(plain));
}

}  // namespace
}  // namespace percheron
