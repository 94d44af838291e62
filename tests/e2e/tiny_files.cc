// Writes a toy target, random rows and DIRECTORY/run.yaml, which trains on them, for scripts:
// tiny_files DIRECTORY EPOCHS
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/file_system.h"
#include "tests/e2e/service.h"
#include "tests/model/toy_model.h"
#include "tools/run_config.h"

namespace percheron {
namespace {

struct {
  std::string directory;
  int64_t epochs = 0;
} arguments;

// The fixtures that it uses belong to a test.
TEST(TinyFiles, AreWritten) {
  ASSERT_TRUE(system_files().create_directories(arguments.directory).ok());
  ASSERT_EQ(setenv("TEST_TMPDIR", arguments.directory.c_str(), 1), 0);
  write_file(join_path(arguments.directory, "run.yaml"),
             run_config_yaml(service_run("tiny", arguments.epochs)));
}

}  // namespace
}  // namespace percheron

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 3) return 2;
  percheron::arguments = {argv[1], std::strtoll(argv[2], nullptr, 10)};
  return RUN_ALL_TESTS();
}
