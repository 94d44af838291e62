#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/file_system.h"
#include "tests/base/fault_file_system.h"

namespace percheron {
namespace {

void expect_one_holder(FileSystem& files, const std::string& path) {
  auto first = files.lock(path);
  ASSERT_TRUE(first.ok()) << first.status().message();
  const auto second = files.lock(path);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find(path), std::string::npos);
  first->reset();
  EXPECT_TRUE(files.lock(path).ok());
  EXPECT_TRUE(files.exists(path)) << "a lock file stays, or two could hold two of them";
}

TEST(FileLock, HasOneHolder) {
  FaultFileSystem simulated;
  expect_one_holder(simulated, "lock");
  const std::string path = testing::TempDir() + "percheron_file_lock";
  ASSERT_TRUE(system_files().remove_all(path).ok());
  expect_one_holder(system_files(), path);
}

TEST(FileLock, NamesAnotherProcessAndIsFreeOnceItWasKilled) {
  const std::string path = testing::TempDir() + "percheron_file_lock_of_child";
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = system_files().lock(path);
    const char done = lock.ok() ? '1' : '0';
    if (write(pipe_ends[1], &done, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char locked = 0;
  ASSERT_EQ(read(pipe_ends[0], &locked, 1), 1);
  EXPECT_EQ(locked, '1');
  const auto refused = system_files().lock(path);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("process " + std::to_string(child) + " on "),
            std::string::npos)
      << refused.status().message();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(system_files().lock(path).ok());
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST(FileSystem, CreateNewLeavesAFileThatIsThere) {
  FaultFileSystem simulated;
  for (FileSystem* files : {static_cast<FileSystem*>(&simulated), &system_files()}) {
    const std::string path = testing::TempDir() + "percheron_create_new";
    ASSERT_TRUE(files->create_directories(testing::TempDir()).ok());
    ASSERT_TRUE(files->remove_all(path).ok());
    ASSERT_TRUE(files->create_new(path).ok());
    ASSERT_TRUE(write_text_atomically(*files, path, "mine").ok());
    const auto again = files->create_new(path);
    ASSERT_FALSE(again.ok());
    EXPECT_EQ(again.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(*files->read_text(path), "mine");
  }
}

}  // namespace
}  // namespace percheron
