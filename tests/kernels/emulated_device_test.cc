#include "kernels/cuda/emulated_device.h"

#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops.h"

namespace percheron {
namespace {

using testing::HasSubstr;

constexpr DeviceId kEmulated0{DeviceKind::kEmulated, 0};

TEST(DeviceEmulated, OpensByName) {
  const auto device = open_device(kEmulated0, {.threads = 2});
  ASSERT_TRUE(device.ok()) << device.status().message();
  EXPECT_EQ(to_string((*device)->info().id), "emulated:0");
  EXPECT_EQ((*device)->info().threads, 2);
  EXPECT_TRUE((*device)->info().native_bf16);
  const auto beyond = open_device({DeviceKind::kEmulated, 256}, {});
  ASSERT_FALSE(beyond.ok());
  EXPECT_THAT(beyond.status().message(), HasSubstr("there is no device emulated:256; there are"));
}

TEST(DeviceEmulated, RefusesAnUnknownSchedule) {
  const char* chosen = std::getenv("PERCHERON_EMULATOR_SCHEDULE");
  const std::string before = chosen == nullptr ? "" : chosen;
  ASSERT_EQ(setenv("PERCHERON_EMULATOR_SCHEDULE", "sideways", 1), 0);
  const auto device = open_device(kEmulated0, {});
  ASSERT_EQ(setenv("PERCHERON_EMULATOR_SCHEDULE", before.c_str(), 1), 0);
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(device.status().message(), HasSubstr("'sideways'; there are forward, reverse"));
}

TEST(DeviceEmulated, RefusesMoreMemoryThanThereIs) {
  const auto device = open_device(kEmulated0, {.threads = 1});
  ASSERT_TRUE(device.ok());
  const auto buffer = (*device)->allocate(size_t{1} << 60);
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted);
}

// More key heads than a grid has rows: no model has them, but a GPU would refuse the launch too.
TEST(DeviceEmulated, AKernelsErrorIsKeptByTheStream) {
  const auto device = open_device(kEmulated0, {.threads = 1});
  ASSERT_TRUE(device.ok());
  const auto stream = (*device)->make_stream();
  Arena arena(**device);
  Context context{**device, *stream, arena};
  {
    const Arena::Scope scope(arena);
    const TensorView q = arena.take(DType::kF32, {1, 65536, 2});
    const TensorView out = arena.take(DType::kF32, {1, 65536, 2});
    const TensorView intervals = arena.take(DType::kI32, {1, 4});
    (*device)->ops().fill_zero(context, intervals);
    (*device)->ops().attention(context, q, q, q, intervals, 1.f, out, {});
  }
  const Status status = stream->wait_idle();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("beyond CUDA's limits"));
  EXPECT_TRUE(stream->wait_idle().ok()) << "the error is cleared";
}

}  // namespace
}  // namespace percheron
