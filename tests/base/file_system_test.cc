#include "base/file_system.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace percheron {
namespace {

class PosixFiles : public testing::Test {
 protected:
  PosixFiles() {
    std::string pattern = join_path(testing::TempDir(), "percheron_XXXXXX");
    directory_ = mkdtemp(pattern.data());
  }
  ~PosixFiles() override { std::filesystem::remove_all(directory_); }

  std::string path(std::string_view name) const { return join_path(directory_, name); }

  Status write(const std::string& at, std::string_view text) {
    PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files_.create(at));
    PERCHERON_RETURN_IF_ERROR(file->append(std::as_bytes(std::span(text))));
    return file->close();
  }

  FileSystem& files_ = system_files();
  std::string directory_;
};

TEST_F(PosixFiles, WhatWasWrittenIsRead) {
  std::string text(300000, 'a');
  text[70000] = '\0';
  ASSERT_TRUE(write(path("file"), text).ok());
  EXPECT_EQ(files_.read_text(path("file")).value(), text);
  EXPECT_EQ(files_.file_size(path("file")).value(), text.size());
  const auto mapped = files_.map(path("file")).value();
  EXPECT_TRUE(std::ranges::equal(mapped->bytes(), std::as_bytes(std::span(text))));
}

TEST_F(PosixFiles, AppendingKeepsWhatIsThereAndCreatingDoesNot) {
  ASSERT_TRUE(write(path("file"), "first").ok());
  auto file = files_.open_append(path("file")).value();
  ASSERT_TRUE(file->append(std::as_bytes(std::span(std::string_view(" second")))).ok());
  ASSERT_TRUE(file->sync().ok());
  ASSERT_TRUE(file->close().ok());
  EXPECT_EQ(files_.read_text(path("file")).value(), "first second");
  ASSERT_TRUE(write(path("file"), "third").ok());
  EXPECT_EQ(files_.read_text(path("file")).value(), "third");
}

TEST_F(PosixFiles, AnEmptyFileMapsToNoBytes) {
  ASSERT_TRUE(write(path("empty"), "").ok());
  EXPECT_TRUE(files_.map(path("empty")).value()->bytes().empty());
}

TEST_F(PosixFiles, AMappedFileOutlivesItsReplacement) {
  ASSERT_TRUE(write(path("file"), "old").ok());
  const auto mapped = files_.map(path("file")).value();
  ASSERT_TRUE(write_text_atomically(files_, path("file"), "new and longer").ok());
  EXPECT_TRUE(
      std::ranges::equal(mapped->bytes(), std::as_bytes(std::span(std::string_view("old")))));
  EXPECT_EQ(files_.read_text(path("file")).value(), "new and longer");
}

TEST_F(PosixFiles, ErrorsNameThePathAndTheReason) {
  const Status missing = files_.map(path("missing")).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_EQ(missing.message(), "cannot open " + path("missing") + ": No such file or directory");
  EXPECT_EQ(files_.map(directory_).status().message(), directory_ + " is not a regular file");
  EXPECT_EQ(files_.list(path("missing")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(files_.read_text(directory_).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(files_.rename(path("missing"), path("x")).code(), StatusCode::kNotFound);
}

TEST_F(PosixFiles, AFullDiskIsResourceExhausted) {
  const Status status = write("/dev/full", "text");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "cannot write to /dev/full: No space left on device");
}

TEST_F(PosixFiles, DirectoriesAreMadeListedAndRemoved) {
  ASSERT_TRUE(files_.create_directories(path("a/b/c")).ok());
  ASSERT_TRUE(files_.create_directories(path("a/b/c")).ok());
  ASSERT_TRUE(write(path("a/z"), "").ok());
  ASSERT_TRUE(files_.sync_directory(path("a")).ok());
  EXPECT_EQ(files_.list(path("a")).value(), (std::vector<std::string>{"b", "z"}));
  ASSERT_TRUE(files_.remove_all(path("a")).ok());
  EXPECT_FALSE(files_.exists(path("a")));
  EXPECT_TRUE(files_.remove_all(path("a")).ok());
}

TEST_F(PosixFiles, ASymlinkIsReplaced) {
  ASSERT_TRUE(files_.create_directories(path("step-1")).ok());
  ASSERT_TRUE(files_.replace_symlink("step-1", path("latest")).ok());
  ASSERT_TRUE(files_.replace_symlink("step-2", path("latest")).ok());
  EXPECT_EQ(files_.read_symlink(path("latest")).value(), "step-2");
  EXPECT_EQ(files_.list(directory_).value(), (std::vector<std::string>{"latest", "step-1"}));
}

TEST_F(PosixFiles, FreeBytesAreKnown) {
  EXPECT_GT(files_.free_bytes(directory_).value(), 0u);
  EXPECT_FALSE(files_.free_bytes(path("missing")).ok());
}

TEST(JoinPath, PutsExactlyOneSlashBetween) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("a//", "/b"), "a/b");
  EXPECT_EQ(join_path("/", "b"), "/b");
  EXPECT_EQ(join_path("", "b"), "b");
}

}  // namespace
}  // namespace percheron
