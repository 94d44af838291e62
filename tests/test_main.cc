#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace {

// So that the tests of two trees, or of two users, never meet in one directory. Empty where
// TEST_TMPDIR names one already, as in a process that a test starts.
std::string own_temporary_directory() {
  if (std::getenv("TEST_TMPDIR") != nullptr) return {};
  std::error_code ignored;
  std::string directory =
      (std::filesystem::temp_directory_path(ignored) / "percheron-test-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) return {};
  setenv("TEST_TMPDIR", directory.c_str(), 1);
  return directory;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string own = own_temporary_directory();
  const int failed = RUN_ALL_TESTS();
  if (own.empty()) return failed;
  if (failed != 0) {
    std::fprintf(stderr, "what the tests wrote is in %s\n", own.c_str());
  } else {
    std::error_code ignored;
    std::filesystem::remove_all(own, ignored);
  }
  return failed;
}
