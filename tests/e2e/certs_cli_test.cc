// `percheron certs` as a user meets it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/clock.h"
#include "base/file_system.h"
#include "data/transport/tls.h"
#include "tests/data/transport/temporary_directory.h"
#include "tests/e2e/program.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

TEST(Certs, TwoCommandsMakeWhatANodeNeeds) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.path() + "/certs";
  const ProgramResult init = run_program("certs init " + directory);
  EXPECT_EQ(init.exit_code, 0) << init.output;
  EXPECT_THAT(init.output, HasSubstr("percheron certs issue " + directory));
  const ProgramResult issue = run_program("certs issue " + directory +
                                          " node1 --address 10.0.0.3 --address node1.lab --days 9");
  EXPECT_EQ(issue.exit_code, 0) << issue.output;
  EXPECT_THAT(issue.output, HasSubstr("issued " + directory + "/node1.crt"));
  EXPECT_THAT(*system_files().list(directory),
              UnorderedElementsAre("ca.crt", "ca.key", "cluster.secret", "node1.crt", "node1.key"));
  struct stat key {};
  ASSERT_EQ(::stat((directory + "/node1.key").c_str(), &key), 0);
  EXPECT_EQ(key.st_mode & 0777, 0600u);
  const auto tls = TlsContext::load(
      system_files(), {directory + "/ca.crt", directory + "/node1.crt", directory + "/node1.key"},
      system_clock());
  ASSERT_TRUE(tls.ok()) << tls.status().message();
  EXPECT_THAT((*tls)->names(), testing::ElementsAre("node1", "10.0.0.3", "node1.lab"));

  const ProgramResult again = run_program("certs init " + directory);
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.output, AllOf(HasSubstr("error: "), HasSubstr("ca.key is there already")));
}

TEST(Certs, BadInputIsOneErrorLine) {
  const TemporaryDirectory temporary;
  const ProgramResult missing = run_program("certs issue " + temporary.path() + " node1");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.output, HasSubstr("error: " + temporary.path() + " holds no certificate"));
  EXPECT_EQ(run_program("certs").exit_code, 2);
  EXPECT_EQ(run_program("certs init").exit_code, 2);
  EXPECT_EQ(run_program("certs init " + temporary.path() + " --days 0").exit_code, 2);
  EXPECT_THAT(*system_files().list(temporary.path()), testing::IsEmpty());
  EXPECT_THAT(run_program("certs issue --help").output,
              AllOf(HasSubstr("--address"), HasSubstr("NAME.key")));
}

}  // namespace
}  // namespace percheron
