// How a daemon knows the devices of its machine.

#include "actors/node/device_book.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "data/transport/file_descriptor.h"

namespace percheron {
namespace {

using ::testing::HasSubstr;

TEST(DeviceBook, ReadsWhatInspectPrints) {
  const Result<DeviceFactsMap> devices = parse_devices(R"({"devices": [
    {"device": "cpu:0", "description": "a processor", "threads": 16, "memory_bytes": 1024},
    {"device": "cuda:1", "description": "NVIDIA H200", "threads": 1, "memory_bytes": 150754820096}],
    "absent": []})");
  ASSERT_TRUE(devices.ok()) << devices.status().message();
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ(devices->at("cpu:0").threads(), 16);
  EXPECT_EQ(devices->at("cuda:1").memory_bytes(), 150754820096u);
  EXPECT_EQ(devices->at("cuda:1").description(), "NVIDIA H200");
  EXPECT_FALSE(devices->at("cuda:1").has_power_watts());
}

TEST(DeviceBook, WhatIsNoListIsRefused) {
  for (const char* text : {"", "error: no", "{}", R"({"devices": 3})", R"({"devices": [{}]})"}) {
    EXPECT_THAT(parse_devices(text).status().message(), HasSubstr("the list of devices")) << text;
  }
}

TEST(DeviceBook, AsksTheProgramOnceAndGivesItNoDescriptors) {
  const FileDescriptor leaked(::fcntl(STDERR_FILENO, F_DUPFD, 40));
  const std::string program = testing::TempDir() + "finds_devices";
  std::ofstream(program) << "#!/bin/sh\n[ \"$1 $2 $3\" = 'inspect --devices --json' ] || exit 1\n"
                         << "[ ! -e /proc/$$/fd/" << leaked.get() << " ] || exit 1\n"
                         << "echo '{\"devices\": [{\"device\": \"cpu:0\", \"description\": "
                            "\"x\", \"threads\": 2, \"memory_bytes\": 3}]}'\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const DeviceBook book(program);
  DeviceFactsMap devices;
  for (int i = 0; i < 600 && devices.empty(); ++i) {  // a minute
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    devices = book.devices();
  }
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(devices["cpu:0"].threads(), 2);
}

// A daemon that is told to end does not wait for a driver that hangs.
TEST(DeviceBook, EndsWhileTheProgramHangs) {
  const std::string program = testing::TempDir() + "hangs";
  std::ofstream(program) << "#!/bin/sh\nexec sleep 30\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const auto begin = std::chrono::steady_clock::now();
  { const DeviceBook book(program); }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(25));
}

}  // namespace
}  // namespace percheron
