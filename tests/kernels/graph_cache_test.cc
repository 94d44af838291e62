// Work that repeats, as graphs: on the emulated device, and on the plug-in's over a runtime whose
// calls fail on demand.

#include "kernels/graph_cache.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/host_attention.h"
#include "kernels/cuda/host_products.h"
#include "kernels/cuda/plugin/cuda_device.h"
#include "kernels/ops.h"
#include "tests/kernels/fake_runtime.h"

namespace percheron {
namespace {

using testing::HasSubstr;

constexpr int64_t kCount = 100;

/// y += x, n times, recorded where it repeats.
class GraphCacheTest : public testing::Test {
 protected:
  GraphCacheTest() { open(open_device({DeviceKind::kEmulated, 0}, {.threads = 1}).value()); }
  ~GraphCacheTest() override {
    cache_ = GraphCache();
    x_ = Tensor();
    y_ = Tensor();
    context_.reset();
    arena_.reset();
    stream_.reset();
  }

  void open(std::unique_ptr<Device> device) {
    x_ = Tensor();
    y_ = Tensor();
    cache_ = GraphCache();
    context_.reset();
    arena_.reset();
    stream_.reset();
    device_ = std::move(device);
    device_->bind_thread();
    stream_ = device_->make_stream();
    arena_ = std::make_unique<Arena>(*device_);
    PERCHERON_CHECK(arena_->reserve(1 << 16).ok(), "no memory");
    context_.reset(new Context{*device_, *stream_, *arena_});
    x_ = device_->make_tensor(DType::kF32, {kCount}).value();
    y_ = device_->make_tensor(DType::kF32, {kCount}).value();
    fill(x_, 1);
    fill(y_, 0);
  }

  void fill(const TensorView& to, float value) {
    const std::vector<float> values(kCount, value);
    device_->upload_bytes(*stream_, to.data(), values.data(), to.bytes());
  }
  float first_of(const TensorView& from) {
    std::vector<float> values(kCount);
    device_->copy_bytes(*stream_, values.data(), from.data(), from.bytes());
    const Status status = stream_->wait_idle();
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(values, std::vector<float>(kCount, values[0]));
    return values[0];
  }
  /// y += 2 x by way of scratch memory.
  void work() {
    const Ops& ops = device_->ops();
    const TensorView twice = arena_->take(DType::kF32, {kCount});
    ops.copy(*context_, x_, twice);
    ops.add(*context_, x_, twice);
    ops.add(*context_, twice, y_);
  }
  void run(uint64_t key = 0) {
    cache_.run(*context_, {key}, [this] { work(); });
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Context> context_;
  Tensor x_, y_;
  GraphCache cache_;
};

TEST_F(GraphCacheTest, IsRecordedTheSecondTimeAndLaunchedFromThenOn) {
  for (int i = 1; i <= 5; ++i) {
    const uint64_t before = stream_->launches();
    run();
    EXPECT_EQ(stream_->launches() - before, i == 1 ? 3u : i == 2 ? 4u : 1u) << i;
    EXPECT_EQ(first_of(y_), 2.0f * static_cast<float>(i));
  }
  EXPECT_EQ(cache_.counts().direct, 1u);
  EXPECT_EQ(cache_.counts().recorded, 1u);
  EXPECT_EQ(cache_.counts().replayed, 3u);
  EXPECT_EQ(device_->counters().graphs_launched, 4u);
}

TEST_F(GraphCacheTest, ReadsTheValuesThatAreThereWhenItIsLaunched) {
  for (int i = 0; i < 3; ++i) run();
  fill(x_, 10);
  run();
  EXPECT_EQ(first_of(y_), 6 + 20);
}

TEST_F(GraphCacheTest, AnotherKeyIsOtherWork) {
  for (int i = 0; i < 3; ++i) run(1);
  for (int i = 0; i < 3; ++i) run(2);
  EXPECT_EQ(cache_.counts().recorded, 2u);
  EXPECT_EQ(first_of(y_), 12);
}

// What a key leaves out is as it was when the work was recorded: the reason why keys name all.
TEST_F(GraphCacheTest, ANumberThatTheKeyLeavesOutIsStale) {
  for (float factor : {1.f, 1.f, 5.f}) {
    fill(y_, 0);
    cache_.run(*context_, {0}, [&] { device_->ops().axpby(*context_, factor, x_, 0, y_); });
  }
  EXPECT_EQ(first_of(y_), 1.f);
}

TEST_F(GraphCacheTest, OtherScratchAddressesAreAnotherKey) {
  for (int i = 0; i < 3; ++i) run();
  {
    const Arena::Scope scope(*arena_);
    arena_->take(DType::kF32, {1});
    run();
  }
  EXPECT_EQ(cache_.counts().direct, 2u);
  ASSERT_TRUE(stream_->wait_idle().ok());
  ASSERT_TRUE(arena_->reserve(1 << 17).ok());
  run();
  EXPECT_EQ(cache_.graphs(), 0u) << "what was recorded holds addresses of memory that is gone";
  EXPECT_EQ(first_of(y_), 10);
}

TEST_F(GraphCacheTest, TheGraphUsedLeastRecentlyGoes) {
  GraphCache two(2);
  const auto run_twice = [&](uint64_t key) {
    for (int i = 0; i < 2; ++i) two.run(*context_, {key}, [this] { work(); });
  };
  run_twice(1);
  run_twice(2);
  two.run(*context_, {1}, [this] { work(); });
  EXPECT_EQ(first_of(y_), 10);
  run_twice(3);  // 2 goes
  EXPECT_EQ(two.graphs(), 2u);
  two.run(*context_, {1}, [this] { work(); });
  EXPECT_EQ(two.counts().replayed, 2u);
  two.run(*context_, {2}, [this] { work(); });
  EXPECT_EQ(two.counts().direct, 4u);
  EXPECT_EQ(first_of(y_), 2 * 9);
}

TEST_F(GraphCacheTest, ManyKeysThatNeverComeAgainAreForgotten) {
  for (uint64_t key = 0; key < 200; ++key) run(key);
  run(0);
  EXPECT_EQ(cache_.counts().direct, 201u);
  run(199);
  EXPECT_EQ(cache_.counts().recorded, 1u);
}

/// Work that can't be recorded runs all the same, each time, and that is counted.
class GraphRefusal : public GraphCacheTest {
 protected:
  void expect_direct(const std::function<void()>& spoil) {
    for (int i = 1; i <= 4; ++i) {
      cache_.run(*context_, {7}, [&] {
        work();
        spoil();
      });
      EXPECT_EQ(first_of(y_), 2.0f * static_cast<float>(i));
    }
    EXPECT_EQ(cache_.counts().refused, 1u);
    EXPECT_EQ(cache_.counts().recorded, 0u);
    EXPECT_EQ(device_->counters().graphs_refused, 1u);
  }
};

TEST_F(GraphRefusal, ACopyToTheHost) {
  std::vector<float> values(kCount);
  expect_direct(
      [&] { device_->copy_bytes(*stream_, values.data(), x_.view().data(), x_.view().bytes()); });
}

TEST_F(GraphRefusal, AWait) {
  expect_direct([&] { EXPECT_TRUE(stream_->wait_idle().ok()); });
}

TEST_F(GraphRefusal, Memory) {
  expect_direct([&] { EXPECT_TRUE(device_->allocate(64).ok()); });
}

TEST_F(GraphRefusal, AnEvent) {
  const auto event = device_->make_event();
  expect_direct([&] { stream_->record(*event); });
}

// The error belongs to the work, not to the recording: it is told when the work runs.
TEST_F(GraphRefusal, AnOperationThatFailsIsToldWhenItRuns) {
  for (int i = 1; i <= 3; ++i) {
    cache_.run(*context_, {7}, [&] {
      work();
      stream_->fail(internal_error("planted"));
    });
    EXPECT_THAT(stream_->wait_idle().message(), HasSubstr("planted")) << i;
  }
  EXPECT_EQ(cache_.counts().refused, 1u);
}

TEST_F(GraphRefusal, ADeviceThatIsOpenedWithoutGraphsRecordsNothing) {
  open(open_device({DeviceKind::kEmulated, 0}, {.threads = 1, .graphs = false}).value());
  for (int i = 0; i < 3; ++i) run();
  EXPECT_EQ(cache_.counts().direct, 3u);
  EXPECT_EQ(cache_.counts().refused, 0u);
  EXPECT_EQ(first_of(y_), 6);
  EXPECT_EQ(stream_->begin_recording().code(), StatusCode::kFailedPrecondition);
}

/// The same over CUDA's runtime.
class GraphOnCuda : public GraphRefusal {
 protected:
  GraphOnCuda() {
    auto runtime = std::make_unique<cuda::FakeRuntime>(cuda::FakeRuntime::Machine{});
    runtime_ = runtime.get();
    auto device =
        cuda::make_cuda_device({DeviceKind::kCuda, 0}, {.threads = 1}, std::move(runtime),
                               {.make_products =
                                    [] {
                                      return Result<std::unique_ptr<cuda::MatrixProducts>>(
                                          std::make_unique<cuda::HostProducts>());
                                    },
                                .open_attention =
                                    [] {
                                      return Result<std::unique_ptr<cuda::AttentionLibrary>>(
                                          std::make_unique<cuda::HostAttention>());
                                    }});
    PERCHERON_CHECK(device.ok(), device.status().message());
    open(std::move(device).value());
  }
  ~GraphOnCuda() override {
    // Before the base's: the device is told of every graph that goes.
    cache_ = GraphCache();
    EXPECT_EQ(runtime_->graphs(), 0u) << "every graph is destroyed";
  }

  cuda::FakeRuntime* runtime_ = nullptr;
};

TEST_F(GraphOnCuda, IsRecordedAndLaunched) {
  for (int i = 1; i <= 4; ++i) {
    run();
    EXPECT_EQ(first_of(y_), 2.0f * static_cast<float>(i));
  }
  EXPECT_EQ(cache_.counts().replayed, 2u);
  EXPECT_EQ(runtime_->graphs(), 1u) << "only what is launched stays";
}

TEST_F(GraphOnCuda, EveryCallThatFailsLeavesTheWorkToRunDirectly) {
  for (const char* call : {"begin_capture", "end_capture", "instantiate_graph"}) {
    SCOPED_TRACE(call);
    cache_ = GraphCache();
    fill(y_, 0);
    runtime_->fail(call, {cuda::RuntimeError::Kind::kOther, "cudaErrorNotSupported", "no"});
    for (int i = 1; i <= 3; ++i) {
      run();
      EXPECT_EQ(first_of(y_), 2.0f * static_cast<float>(i));
    }
    EXPECT_EQ(cache_.counts().refused, 1u);
    EXPECT_EQ(cache_.counts().direct, 2u) << "it is not tried again";
    runtime_->fail(call, {});
  }
}

TEST_F(GraphOnCuda, AFailedLaunchIsTheStreamsError) {
  for (int i = 0; i < 2; ++i) run();
  ASSERT_TRUE(stream_->wait_idle().ok());
  runtime_->fail("launch_graph", {cuda::RuntimeError::Kind::kOther, "cudaErrorUnknown", "no"});
  run();
  EXPECT_THAT(stream_->wait_idle().message(), HasSubstr("launching a graph"));
}

TEST_F(GraphOnCuda, ACardThatIsLostInACaptureIsSaid) {
  run();
  runtime_->fail("end_capture",
                 {cuda::RuntimeError::Kind::kLost, "cudaErrorIllegalAddress", "lost"});
  run();
  EXPECT_THAT(stream_->wait_idle().message(), HasSubstr("cudaErrorIllegalAddress"));
}

}  // namespace
}  // namespace percheron
