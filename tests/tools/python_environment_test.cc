#include "tools/python_environment.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <memory>

#include "tests/tools/script.h"

namespace percheron {
namespace {

std::unique_ptr<ChildProcess> start(const PythonEnvironment& python) {
  Result<ChildProcess> child = ChildProcess::start(python, {"tokenize"});
  EXPECT_TRUE(child.ok()) << child.status().message();
  return child.ok() ? std::make_unique<ChildProcess>(std::move(*child)) : nullptr;
}

int64_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST(ChildProcess, TalksLineByLineWithItsEnvironment) {
  const PythonEnvironment python{
      write_script("speaks.sh",
                   "echo \"$PYTHONPATH $PYTHONUNBUFFERED $3 ${HOME:+home}\"\n"
                   "while read -r line; do echo \"heard $line\"; done\n"),
      "some/package"};
  const std::unique_ptr<ChildProcess> child = start(python);
  ASSERT_NE(child, nullptr);
  EXPECT_EQ(*child->read_line(), "some/package 1 tokenize home");
  ASSERT_TRUE(child->write_line("me").ok());
  EXPECT_EQ(*child->read_line(), "heard me");
}

// A second child that inherits the first one's input keeps it open: the first never ends.
TEST(ChildProcess, EndsWhileAnotherLives) {
  const PythonEnvironment python{write_script("waits.sh", "while read -r line; do :; done\n"), ""};
  std::unique_ptr<ChildProcess> first = start(python);
  const std::unique_ptr<ChildProcess> second = start(python);
  first.reset();
}

TEST(ChildProcess, AFailedStartLeavesNothingOpen) {
  const int64_t before = open_descriptors();
  const Result<ChildProcess> child = ChildProcess::start({"/nonexistent/python", ""}, {});
  ASSERT_FALSE(child.ok());
  EXPECT_NE(child.status().message().find("/nonexistent/python"), std::string::npos);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ChildProcess, OneThatEndedIsAnErrorOnReadingAndWriting) {
  const std::unique_ptr<ChildProcess> child =
      start({write_script("ends.sh", "exec <&-\necho deaf\n"), ""});
  ASSERT_NE(child, nullptr);
  EXPECT_EQ(*child->read_line(), "deaf");
  EXPECT_EQ(child->write_line("anyone?").code(), StatusCode::kUnavailable);
  EXPECT_EQ(child->read_line().status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace percheron
