// The commands of the README's "Several machines", as its script types them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/e2e/program.h"
#include "tests/e2e/service.h"
#include "tests/model/toy_model.h"
#include "tools/run_config.h"

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(SeveralMachines, TheDemonstrationOfTheReadmeRuns) {
  const proto::Run run = lasting_run(TestNode("paced"), "service_readme", 3);
  const std::string config = testing::TempDir() + "service_readme.yaml";
  write_file(config, run_config_yaml(run));
  const ProgramResult demo =
      run_command("PERCHERON=" PERCHERON_PROGRAM " tools/demo/several_machines.sh " + config +
                  " output.directory=" + run.output().directory());
  EXPECT_EQ(demo.exit_code, 0) << demo.output;
  EXPECT_THAT(demo.output,
              AllOf(HasSubstr("is paused; its workers stay"), HasSubstr("is started again in"),
                    HasSubstr("target 0 is ready"), ContainsRegex("done +[0-9]+/[0-9]+")));
}

}  // namespace
}  // namespace percheron
