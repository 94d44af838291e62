#include "kernels/device.h"

#include <cstdlib>
#include <string>
#include <thread>

#include "kernels/planning_device.h"
#include "tests/kernels/kernel_test.h"

namespace percheron::kernel_test {
namespace {

TEST(DeviceId, ReadsAndPrintsNames) {
  for (const std::string name : {"cpu:0", "cpu:255", "cuda:3", "emulated:1", "planning:0"}) {
    const auto id = parse_device_id(name);
    ASSERT_TRUE(id.ok()) << id.status().message();
    EXPECT_EQ(to_string(*id), name);
  }
}

TEST(DeviceId, RefusesWhatIsNoDevice) {
  for (const std::string name : {"", "cpu", "cpu:", "cpu:x", "cpu:-1", "cpu:1 ", "tpu:0", ":0",
                                 "cpu:99999999999", "CPU:0"}) {
    const auto id = parse_device_id(name);
    ASSERT_FALSE(id.ok()) << name;
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(Devices, AMissingOneIsNotFound) {
  for (const DeviceId id : {DeviceId{DeviceKind::kCpu, 256}, DeviceId{DeviceKind::kCuda, 77}}) {
    const auto device = open_device(id, {});
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.status().code(), StatusCode::kNotFound);
    EXPECT_NE(device.status().message().find("cpu:0"), std::string::npos);
  }
}

TEST(Devices, UseTheThreadsTheyAreGiven) {
  const auto device = open_device({DeviceKind::kCpu, 3}, {.threads = 1});
  ASSERT_TRUE(device.ok());
  EXPECT_EQ((*device)->info().threads, 1);
  EXPECT_GT((*device)->info().memory_bytes, 0u);
  EXPECT_FALSE((*device)->info().description.empty());
}

TEST(Devices, RefuseMoreMemoryThanThereIs) {
  const auto device = open_device({DeviceKind::kCpu, 0}, {});
  ASSERT_TRUE(device.ok());
  const auto buffer = (*device)->allocate(size_t{1} << 60);
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted);
}

TEST(Devices, RefuseAnUnknownInstructionSet) {
  const char* chosen = std::getenv("PERCHERON_CPU_ISA");
  const std::string before = chosen == nullptr ? "" : chosen;  // "" chooses too
  ASSERT_EQ(setenv("PERCHERON_CPU_ISA", "sse9", 1), 0);
  const auto device = open_device({DeviceKind::kCpu, 0}, {});
  ASSERT_EQ(setenv("PERCHERON_CPU_ISA", before.c_str(), 1), 0);
  ASSERT_FALSE(device.ok());
  EXPECT_NE(device.status().message().find("generic"), std::string::npos);
}

TEST(Buffers, AreAlignedAndMove) {
  const auto device = open_device({DeviceKind::kCpu, 0}, {});
  ASSERT_TRUE(device.ok());
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{5} << 20}) {
    auto buffer = (*device)->allocate(bytes);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
    EXPECT_EQ(buffer->bytes(), bytes);
    Buffer other = std::move(*buffer);
    EXPECT_EQ(other.bytes(), bytes);
  }
}

TEST(Arenas, GiveTheSameMemoryAgainAfterAScope) {
  const auto device = open_device({DeviceKind::kCpu, 0}, {});
  ASSERT_TRUE(device.ok());
  Arena arena(**device);
  const void* first = nullptr;
  for (int step = 0; step < 3; ++step) {
    Arena::Scope outer(arena);
    const TensorView x = arena.take(DType::kF32, {3, 5});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x.data()) % 64, 0u);
    if (step == 0) first = x.data();
    EXPECT_EQ(x.data(), first);
    const void* inner_first = nullptr;
    for (int i = 0; i < 2; ++i) {
      Arena::Scope inner(arena);
      const TensorView y = arena.take(DType::kBf16, {7});
      if (i == 0) inner_first = y.data();
      EXPECT_EQ(y.data(), inner_first);
      EXPECT_NE(y.data(), x.data());
    }
    EXPECT_EQ(arena.bytes_in_use(), 64u);
  }
  EXPECT_EQ(arena.bytes_in_use(), 0u);
  EXPECT_EQ(arena.bytes_peak(), 128u);
}

TEST(Arenas, GrowWithoutMovingWhatIsTaken) {
  const auto device = open_device({DeviceKind::kCpu, 0}, {});
  ASSERT_TRUE(device.ok());
  Arena arena(**device);
  for (int step = 0; step < 3; ++step) {
    Arena::Scope scope(arena);
    std::vector<TensorView> taken;
    for (int64_t i = 0; i < 20; ++i) {
      taken.push_back(arena.take(DType::kF32, {1 << 18}));
      std::fill_n(taken.back().as<float>(), 1 << 18, static_cast<float>(i));
    }
    for (int64_t i = 0; i < 20; ++i) {
      for (const int64_t at : {0, (1 << 18) - 1}) {
        EXPECT_EQ(taken[static_cast<size_t>(i)].as<float>()[at], static_cast<float>(i));
      }
    }
  }
}

// The sizes are the user's, through data.token_budget: no bug, and not a wrapped product either.
TEST(Arenas, EndTheProcessInOneLineWithoutTheMemory) {
  const auto device = open_device({DeviceKind::kCpu, 0}, {});
  ASSERT_TRUE(device.ok());
  Arena arena(**device);
  for (const int64_t rows : {int64_t{1} << 40, int64_t{1} << 62}) {
    EXPECT_EXIT(arena.take(DType::kF32, {rows, 4096}), testing::ExitedWithCode(EXIT_FAILURE),
                "percheron: out of memory on cpu:0.*data.token_budget");
  }
}

TEST(Devices, RefuseTensorsWhoseBytesOverflow) {
  const auto device = open_device({DeviceKind::kCpu, 0}, {});
  ASSERT_TRUE(device.ok());
  for (const int64_t rows : {int64_t{1} << 61, int64_t{1} << 62, int64_t{-1}}) {
    const auto tensor = (*device)->make_tensor(DType::kF32, {rows, 4});
    ASSERT_FALSE(tensor.ok()) << rows;
    EXPECT_EQ(tensor.status().code(), StatusCode::kResourceExhausted);
  }
}

TEST(Streams, KeepTheErrorOfAWeightThatHasNoMemory) {
  const auto device = open_device({DeviceKind::kCpu, 0}, {.threads = 1});
  ASSERT_TRUE(device.ok());
  const auto stream = (*device)->make_stream();
  Arena arena(**device);
  Context context{**device, *stream, arena};
  const Ops& ops = (*device)->ops();
  const int64_t huge = int64_t{1} << 44;
  const auto weight = ops.make_packed(context, 4, huge, DType::kF32, MatrixUse::kForward);
  ASSERT_NE(weight, nullptr);
  float host[4] = {1, 2, 3, 4};
  // Never read: operations on the weight do nothing.
  ops.pack(context, ConstTensorView(host, DType::kF32, {4, huge}), *weight);
  ops.linear(context, ConstTensorView(host, DType::kF32, {1, huge}), *weight, {}, Write::kOverwrite,
             TensorView(host, DType::kF32, {1, 4}));
  EXPECT_EQ(host[3], 4);
  EXPECT_EQ(stream->wait_idle().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(stream->wait_idle().ok()) << "the error is cleared";
}

TEST(Planning, CountsMemoryThatNobodyCouldHave) {
  const auto device = open_device({DeviceKind::kPlanning, 0}, {.threads = 4});
  ASSERT_TRUE(device.ok());
  const size_t tebibyte = size_t{1} << 40;
  {
    const auto big = (*device)->allocate(tebibyte);
    ASSERT_TRUE(big.ok());
    const auto more = (*device)->allocate(100);
    ASSERT_TRUE(more.ok());
    EXPECT_EQ(planned_bytes(**device), tebibyte + 100);
  }
  const auto small = (*device)->allocate(5);
  ASSERT_TRUE(small.ok());
  EXPECT_EQ(planned_bytes(**device), tebibyte + 100);
}

TEST(Planning, OperationsTouchNothing) {
  const auto device = open_device({DeviceKind::kPlanning, 0}, {});
  ASSERT_TRUE(device.ok());
  const auto stream = (*device)->make_stream();
  Arena arena(**device);
  Context context{**device, *stream, arena};
  const Ops& ops = (*device)->ops();
  Arena::Scope scope(arena);
  const TensorView x = arena.take(DType::kF32, {1000, 1000});
  const TensorView y = arena.take(DType::kF32, {1000, 1000});
  const auto weight = ops.make_packed(context, 1000, 1000, DType::kF32, MatrixUse::kForward);
  ops.pack(context, x, *weight);
  ops.linear(context, x, *weight, ConstTensorView(), Write::kOverwrite, y);
  ops.swiglu(context, x, y.columns(0, 500));
  ops.fill_zero(context, x);
  float host = 0;
  (*device)->copy_bytes(*stream, x.data(), &host, sizeof host);
  EXPECT_TRUE(stream->wait_idle().ok());
  EXPECT_GE(planned_bytes(**device), size_t{12000000});
}

/// Two devices in one process, each driven by its own thread, give what one alone gives.
TEST(Devices, WorkSideBySide) {
  const auto work = [](std::vector<float>* result) {
    const auto device = open_device({DeviceKind::kCpu, 0}, {.threads = 2});
    PERCHERON_CHECK(device.ok(), device.status().message());
    (*device)->bind_thread();
    const auto stream = (*device)->make_stream();
    Arena arena(**device);
    Context context{**device, *stream, arena};
    const TensorView x = arena.take(DType::kF32, {200, 300}),
                     w = arena.take(DType::kF32, {80, 300});
    const TensorView y = arena.take(DType::kF32, {200, 80});
    Random random(5);
    for (const TensorView& view : {x, w}) {
      for (int64_t i = 0; i < view.elements(); ++i) {
        view.as<float>()[i] = static_cast<float>(random.normal());
      }
    }
    const auto packed =
        (*device)->ops().make_packed(context, 80, 300, DType::kF32, MatrixUse::kForward);
    (*device)->ops().pack(context, w, *packed);
    for (int i = 0; i < 20; ++i) {
      (*device)->ops().linear(context, x, *packed, ConstTensorView(), Write::kOverwrite, y);
    }
    result->assign(y.as<float>(), y.as<float>() + y.elements());
  };
  std::vector<float> alone, first, second;
  work(&alone);
  std::thread a(work, &first), b(work, &second);
  a.join();
  b.join();
  EXPECT_EQ(first, alone);
  EXPECT_EQ(second, alone);
}

}  // namespace
}  // namespace percheron::kernel_test
