#include "kernels/cuda/plugin_loader.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr DeviceId kCuda3{DeviceKind::kCuda, 3};

/// A plug-in that is made for these tests (CMakeLists.txt).
std::string fake_plugin(const std::string& name) {
  const std::string path = cuda_plugin_path();
  return path.substr(0, path.rfind('/') + 1) + "test_plugins/lib" + name + ".so";
}

/// Why cuda:3 can't be had through the plug-in at `path`.
std::string refusal(const std::string& path) {
  const auto device = open_cuda_device(kCuda3, {}, path);
  if (device.ok()) return "";
  EXPECT_EQ(device.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(device.status().message().find('\n'), std::string::npos);
  return device.status().message();
}

TEST(PluginLoader, LooksBesideTheProgram) {
  EXPECT_THAT(cuda_plugin_path(), testing::MatchesRegex("/.*/libpercheron_cuda\\.so"));
}

TEST(PluginLoader, AMissingFileIsNamed) {
  EXPECT_EQ(refusal("/nowhere/libpercheron_cuda.so"),
            "there is no device cuda:3: this build has no CUDA backend, which would be "
            "/nowhere/libpercheron_cuda.so");
}

TEST(PluginLoader, AFileThatIsNoLibraryIsNamed) {
  const std::string path = testing::TempDir() + "no_library_" + std::to_string(getpid()) + ".so";
  std::ofstream(path) << "no library at all, but long enough for the linker to look at it twice\n";
  EXPECT_THAT(refusal(path), AllOf(HasSubstr("there is no device cuda:3: the CUDA backend can't be "
                                             "loaded: "),
                                   HasSubstr(path)));
  unlink(path.c_str());
}

TEST(PluginLoader, AMissingLibraryOfThePluginIsNamed) {
  EXPECT_THAT(refusal(fake_plugin("plugin_without_symbol")),
              AllOf(HasSubstr("can't be loaded"), HasSubstr("percheron_defined_nowhere")));
}

TEST(PluginLoader, AnotherLibraryIsRefused) {
  EXPECT_THAT(refusal(fake_plugin("plugin_of_somebody")), HasSubstr("is no CUDA backend"));
}

TEST(PluginLoader, AnotherBuildIsRefused) {
  EXPECT_THAT(refusal(fake_plugin("plugin_of_another_build")),
              HasSubstr("is of another build of percheron: its interface is number 999"));
}

TEST(PluginLoader, ThePluginsAnswerIsGivenBack) {
  EXPECT_EQ(refusal(fake_plugin("plugin_without_devices")),
            "there is no device cuda:3: the last one is cuda:1");
}

TEST(PluginLoader, AMissingNcclIsOneLine) {
  const auto missing = open_cuda_collectives(std::span(&kCuda3, 1), {}, "/nowhere/plugin.so");
  EXPECT_EQ(missing.status().message(),
            "there is no device cuda:3: this build has no CUDA backend, which would be "
            "/nowhere/plugin.so");
  const auto refused =
      open_cuda_collectives(std::span(&kCuda3, 1), {}, fake_plugin("plugin_without_devices"));
  EXPECT_EQ(refused.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(refused.status().message(), "libnccl.so.2 can't be loaded");
}

// This program's own plug-in, where it is built; on a machine without a GPU it must say so.
TEST(PluginLoader, TheRealPluginOpensADeviceOrSaysWhatIsMissing) {
  if (access(cuda_plugin_path().c_str(), F_OK) != 0) GTEST_SKIP() << "no CUDA backend is built";
  const auto first = open_device({DeviceKind::kCuda, 0}, {});
  if (first.ok()) {
    EXPECT_THAT((*first)->info().description, HasSubstr("compute capability"));
  } else {
    EXPECT_THAT(first.status().message(),
                AnyOf(HasSubstr("cuda:0: no NVIDIA driver is installed here; there are cpu:0"),
                      HasSubstr("cuda:0: the NVIDIA driver is for CUDA "),
                      HasSubstr("can't be loaded"), HasSubstr("CUDA finds no GPU")));
  }
  const auto last = open_device({DeviceKind::kCuda, 77}, {});
  ASSERT_FALSE(last.ok());
  EXPECT_EQ(last.status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace percheron
