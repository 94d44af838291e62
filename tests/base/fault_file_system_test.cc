#include "tests/base/fault_file_system.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace percheron {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

Status write(FileSystem& files, const std::string& path, std::string_view text) {
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.create(path));
  PERCHERON_RETURN_IF_ERROR(file->append(bytes_of(text)));
  return file->sync();
}

TEST(FaultFileSystem, BehavesLikeAFileSystemWithoutFaults) {
  FaultFileSystem files;
  ASSERT_TRUE(files.create_directories("/run/step-1").ok());
  ASSERT_TRUE(write(files, "/run/step-1/weights", "w").ok());
  ASSERT_TRUE(files.open_append("/run/step-1/weights").value()->append(bytes_of("x")).ok());
  ASSERT_TRUE(files.replace_symlink("step-1", "/run/latest").ok());
  EXPECT_EQ(files.read_text("/run/latest/weights").value(), "wx");
  EXPECT_EQ(files.read_symlink("/run/latest").value(), "step-1");
  EXPECT_EQ(files.list("/run").value(), (std::vector<std::string>{"latest", "step-1"}));
  ASSERT_TRUE(files.rename("/run/step-1", "/run/step-2").ok());
  EXPECT_FALSE(files.exists("/run/latest"));
  EXPECT_EQ(files.file_size("/run/step-2/weights").value(), 2u);
  EXPECT_EQ(files.map("/run").status().message(), "cannot map /run: it is not a regular file");
  EXPECT_EQ(files.create("/none/x").status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(files.remove_all("/run").ok());
  EXPECT_TRUE(files.remove_all("/run").ok());
  EXPECT_FALSE(files.exists("/run"));
}

TEST(FaultFileSystem, AMappingKeepsItsBytes) {
  FaultFileSystem files;
  ASSERT_TRUE(write(files, "/a", "old").ok());
  const auto mapped = files.map("/a").value();
  ASSERT_TRUE(files.open_append("/a").value()->append(bytes_of("er")).ok());
  EXPECT_TRUE(std::ranges::equal(mapped->bytes(), bytes_of("old")));
}

TEST(FaultFileSystem, AFullDiskTakesAPartOfTheWrite) {
  FaultFileSystem files;
  files.fill_disk_after(3);
  EXPECT_EQ(write(files, "/a", "12345").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(files.read_text("/a").value(), "123");
  EXPECT_EQ(files.free_bytes("/").value(), 0u);
  files.free_disk();
  EXPECT_TRUE(write(files, "/a", "12345").ok());
}

TEST(FaultFileSystem, OnlyTheChosenOperationFails) {
  FaultFileSystem files;
  files.fail_operation(2, internal_error("input/output error"));
  EXPECT_EQ(write(files, "/a", "text").message(), "/a: input/output error");
  EXPECT_TRUE(write(files, "/a", "text").ok());
}

TEST(FaultFileSystem, ACrashLosesBytesAndNamesThatWereNotSynced) {
  FaultFileSystem files;
  ASSERT_TRUE(write(files, "/synced_name", "abc").ok());
  ASSERT_TRUE(files.sync_directory("/").ok());
  ASSERT_TRUE(files.open_append("/synced_name").value()->append(bytes_of("def")).ok());
  ASSERT_TRUE(write(files, "/other_name", "abc").ok());
  files.restart_keeping_synced();
  EXPECT_EQ(files.read_text("/synced_name").value(), "abc");
  EXPECT_FALSE(files.exists("/other_name"));
}

TEST(FaultFileSystem, NothingWorksBetweenAPowerCutAndTheRestart) {
  FaultFileSystem files;
  files.cut_power_at_operation(3);
  EXPECT_EQ(write(files, "/a", "text").code(), StatusCode::kUnavailable);
  EXPECT_EQ(files.list("/").status().code(), StatusCode::kUnavailable);
  files.restart_keeping_synced();
  EXPECT_TRUE(files.list("/").ok());
}

TEST(FaultFileSystem, ACrashMayKeepAnyBeginningOfWhatWasNotSynced) {
  std::vector<size_t> kept_sizes;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    FaultFileSystem files;
    ASSERT_TRUE(write(files, "/a", "12").ok());
    ASSERT_TRUE(files.sync_directory("/").ok());
    ASSERT_TRUE(files.open_append("/a").value()->append(bytes_of("34")).ok());
    files.restart_keeping_some(seed);
    const std::string text = files.read_text("/a").value();
    EXPECT_TRUE(std::string_view("1234").starts_with(text));
    kept_sizes.push_back(text.size());
  }
  std::ranges::sort(kept_sizes);
  kept_sizes.erase(std::unique(kept_sizes.begin(), kept_sizes.end()), kept_sizes.end());
  EXPECT_EQ(kept_sizes, (std::vector<size_t>{2, 3, 4}));
}

TEST(WriteTextAtomically, LeavesTheOldOrTheNewTextWhereverThePowerFails) {
  for (uint64_t cut = 1;; ++cut) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(testing::Message() << "cut at operation " << cut << ", seed " << seed);
      FaultFileSystem files;
      ASSERT_TRUE(write_text_atomically(files, "/manifest", "old").ok());
      files.cut_power_at_operation(cut);
      const bool done = write_text_atomically(files, "/manifest", "new text").ok();
      if (seed == 0) {
        files.restart_keeping_synced();
      } else {
        files.restart_keeping_some(seed);
      }
      const std::string text = files.read_text("/manifest").value();
      EXPECT_TRUE(text == "new text" || (text == "old" && !done)) << text;
      if (done && seed == 19) return;
    }
  }
}

TEST(WriteTextAtomically, AFullDiskLeavesTheOldTextAndNoTemporaryFile) {
  FaultFileSystem files;
  ASSERT_TRUE(write_text_atomically(files, "/manifest", "old").ok());
  files.fill_disk_after(2);
  EXPECT_EQ(write_text_atomically(files, "/manifest", "new").code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(files.read_text("/manifest").value(), "old");
  EXPECT_EQ(files.list("/").value(), (std::vector<std::string>{"manifest"}));
}

}  // namespace
}  // namespace percheron
