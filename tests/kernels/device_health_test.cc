#include "kernels/device_health.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/plugin_loader.h"

namespace percheron {
namespace {

using testing::HasSubstr;

/// A library in NVML's place (CMakeLists.txt).
std::string fake(const std::string& name) {
  const std::string path = cuda_plugin_path();
  return path.substr(0, path.rfind('/') + 1) + "test_plugins/lib" + name + ".so";
}

TEST(DeviceHealth, EverythingThatACardTellsIsRead) {
  auto monitor = open_nvml_monitor(fake("fake_nvml"));
  ASSERT_TRUE(monitor.ok()) << monitor.status().message();
  ASSERT_EQ((*monitor)->cards().size(), 3u);
  EXPECT_EQ((*monitor)->cards()[0].name, "NVIDIA H200");
  EXPECT_EQ((*monitor)->cards()[0].uuid, "GPU-1234");
  const auto health = (*monitor)->read(0);
  ASSERT_TRUE(health.ok()) << health.status().message();
  EXPECT_EQ(health->utilization, 0.37);
  EXPECT_EQ(health->memory_used_bytes, 10737418240u);
  EXPECT_EQ(health->memory_bytes, 150754820096u);
  EXPECT_EQ(health->power_watts, 345.6);
  EXPECT_EQ(health->power_limit_watts, 700);
  EXPECT_EQ(health->temperature_celsius, 52);
  EXPECT_EQ(health->ecc_corrected, 12u);
  EXPECT_EQ(health->ecc_uncorrected, 1u);
  EXPECT_EQ(health->last_xid, 79u) << "the newer of two";
}

TEST(DeviceHealth, WhatACardDoesNotTellIsAbsent) {
  auto monitor = open_nvml_monitor(fake("fake_nvml"));
  ASSERT_TRUE(monitor.ok()) << monitor.status().message();
  EXPECT_EQ((*monitor)->cards()[1].uuid, "");
  const auto health = (*monitor)->read(1);
  ASSERT_TRUE(health.ok()) << health.status().message();
  EXPECT_TRUE(health->memory_bytes.has_value() && health->temperature_celsius.has_value());
  EXPECT_FALSE(health->utilization || health->power_watts || health->power_limit_watts ||
               health->ecc_corrected || health->ecc_uncorrected || health->last_xid);
}

TEST(DeviceHealth, ACardThatIsLostIsAnError) {
  auto monitor = open_nvml_monitor(fake("fake_nvml"));
  ASSERT_TRUE(monitor.ok()) << monitor.status().message();
  const auto health = (*monitor)->read(2);
  ASSERT_FALSE(health.ok());
  EXPECT_EQ(health.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(health.status().message(), "the driver has lost card 2 (NVIDIA Old)");
}

TEST(DeviceHealth, AnOlderDriverTellsLess) {
  auto monitor = open_nvml_monitor(fake("fake_nvml_old"));
  ASSERT_TRUE(monitor.ok()) << monitor.status().message();
  const auto health = (*monitor)->read(0);
  ASSERT_TRUE(health.ok()) << health.status().message();
  EXPECT_EQ(health->utilization, 0.37);
  EXPECT_FALSE(health->ecc_corrected || health->last_xid);
}

TEST(DeviceHealth, WithoutNvmlOneLineSaysWhy) {
  const auto refusal = [](const std::string& library) {
    const auto monitor = open_nvml_monitor(library);
    if (monitor.ok()) return std::string();
    EXPECT_EQ(monitor.status().code(), StatusCode::kNotFound);
    return monitor.status().message();
  };
  EXPECT_THAT(refusal("libnvidia-ml-of-nobody.so.1"),
              HasSubstr("no state of NVIDIA cards: libnvidia-ml-of-nobody.so.1: cannot open"));
  EXPECT_THAT(refusal(fake("fake_nvml_without_driver")), HasSubstr("nvmlInit answers 9"));
  EXPECT_THAT(refusal(fake("plugin_of_somebody")), HasSubstr("is no NVML"));
}

}  // namespace
}  // namespace percheron
