// The devices cuda:N without a GPU: the plug-in's own code over a runtime that fails on demand.

#include "kernels/cuda/plugin/cuda_device.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/host_attention.h"
#include "kernels/cuda/host_products.h"
#include "kernels/cuda/kernel_stream.h"
#include "kernels/cuda/plugin/event_timer.h"
#include "kernels/ops.h"
#include "tests/kernels/fake_runtime.h"

namespace percheron::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr DeviceId kCuda0{DeviceKind::kCuda, 0};

Result<std::unique_ptr<MatrixProducts>> host_products() {
  return std::unique_ptr<MatrixProducts>(std::make_unique<HostProducts>());
}

Result<std::unique_ptr<AttentionLibrary>> host_attention() {
  return std::unique_ptr<AttentionLibrary>(std::make_unique<HostAttention>());
}

Result<std::unique_ptr<Device>> open_fake(std::unique_ptr<FakeRuntime> runtime,
                                          DeviceId id = kCuda0) {
  return make_cuda_device(id, {.threads = 1}, std::move(runtime),
                          {.make_products = host_products, .open_attention = host_attention});
}

/// Why a device can't be had from a machine of this kind.
Status refusal(const FakeRuntime::Machine& machine, DeviceId id = kCuda0) {
  return open_fake(std::make_unique<FakeRuntime>(machine), id).status();
}
/// And where a call fails.
Status refusal(const std::string& call, const RuntimeError& error) {
  auto runtime = std::make_unique<FakeRuntime>(FakeRuntime::Machine{});
  runtime->fail(call, error);
  return open_fake(std::move(runtime)).status();
}

RuntimeError illegal_address() {
  return {RuntimeError::Kind::kLost, "cudaErrorIllegalAddress",
          "an illegal memory access was encountered"};
}

TEST(DeviceCuda, NoDriverIsSaid) {
  const Status status = refusal({.devices = 0, .driver_version = 0});
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "there is no device cuda:0: no NVIDIA driver is installed here");
}

// cudaErrorInsufficientDriver.
TEST(DeviceCuda, AnOldDriverIsNamedWithWhatIsNeeded) {
  const Status status = refusal({.driver_version = 12080, .runtime_version = 13010});
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            "there is no device cuda:0: the NVIDIA driver is for CUDA 12.8, this build needs one "
            "for CUDA 13.1");
}

TEST(DeviceCuda, ADriverWithoutACardIsSaid) {
  const Status status = refusal({.devices = 0});
  EXPECT_EQ(status.message(), "there is no device cuda:0: CUDA finds no GPU");
}

TEST(DeviceCuda, ANumberBeyondTheLastIsRefused) {
  const Status status = refusal({.devices = 2}, {DeviceKind::kCuda, 7});
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "there is no device cuda:7: the last one is cuda:1");
}

TEST(DeviceCuda, AnArchitectureWithoutCodeSaysHowToBuildIt) {
  const Status status =
      refusal("find_kernels", {RuntimeError::Kind::kOther, "cudaErrorNoKernelImageForDevice",
                               "no kernel image is available for execution on the device"});
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            "cuda:0 is a FAKE 9000 of compute capability 9.0, for which this build has no code: "
            "build it with PERCHERON_CUDA_ARCHITECTURES=90-real");
}

TEST(DeviceCuda, AFullCardIsSaidAtTheStart) {
  const Status status = refusal("set_device", no_memory());
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "cuda:0: making it the thread's device: out of memory (cudaErrorMemoryAllocation); "
            "others have left no memory for this process: end them (nvidia-smi shows them)");
}

TEST(DeviceCuda, ProductsThatCannotBeMadeEndTheOpening) {
  const auto device = make_cuda_device(
      kCuda0, {}, std::make_unique<FakeRuntime>(FakeRuntime::Machine{}),
      {.make_products =
           [] {
             return Result<std::unique_ptr<MatrixProducts>>(internal_error("cublasLtCreate: no"));
           },
       .open_attention = host_attention});
  EXPECT_EQ(device.status().message(), "cublasLtCreate: no");
}

/// A device over a fake runtime that the test can reach.
class DeviceCudaWork : public testing::Test {
 protected:
  DeviceCudaWork() { open({}); }

  void open(const FakeRuntime::Machine& machine) {
    auto runtime = std::make_unique<FakeRuntime>(machine);
    runtime_ = runtime.get();
    auto device = open_fake(std::move(runtime));
    PERCHERON_CHECK(device.ok(), device.status().message());
    device_ = std::move(*device);
    device_->bind_thread();
  }

  FakeRuntime* runtime_ = nullptr;
  std::unique_ptr<Device> device_;
};

TEST_F(DeviceCudaWork, TellsWhatItIs) {
  EXPECT_EQ(device_->info().description, "FAKE 9000, compute capability 9.0");
  EXPECT_TRUE(device_->info().own_memory);
  EXPECT_EQ(device_->info().memory_bytes, uint64_t{1} << 30);
}

TEST_F(DeviceCudaWork, ComputesAndGivesEverythingBack) {
  {
    const auto stream = device_->make_stream(), copies = device_->make_stream();
    const auto event = device_->make_event();
    Arena arena(*device_);
    Context context{*device_, *stream, arena};
    const auto pinned = device_->allocate_host(4 * sizeof(float));
    ASSERT_TRUE(pinned.ok());
    auto* host = static_cast<float*>(pinned->data());
    std::fill_n(host, 4, 3.0f);
    {
      const Arena::Scope scope(arena);
      const TensorView x = arena.take(DType::kF32, {4});
      device_->copy_bytes(*stream, x.data(), host, x.bytes());
      device_->ops().add(context, x, x);
      stream->record(*event);
      copies->wait_for(*event);
      device_->copy_bytes(*copies, host, x.data(), x.bytes());
      copies->record(*event);
      ASSERT_TRUE(event->wait().ok());
    }
    EXPECT_EQ(host[3], 6.0f);
    ASSERT_TRUE(stream->wait_idle().ok());
    ASSERT_TRUE(copies->wait_idle().ok());
    EXPECT_EQ(device_->counters().waits, 3u);
  }
  EXPECT_EQ(runtime_->streams(), 0u);
  EXPECT_EQ(runtime_->events(), 0u);
  EXPECT_EQ(runtime_->pieces(), 0u);
}

TEST_F(DeviceCudaWork, MemoryThatIsUsedUpNamesBytesAndWhatToLower) {
  open({.memory_bytes = 10000});
  const auto first = device_->allocate(8000);
  ASSERT_TRUE(first.ok());
  const auto second = device_->allocate(4000);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(second.status().message(),
              AllOf(HasSubstr("cuda:0: no 4000 bytes of memory, 2000 of 10000 are free"),
                    HasSubstr("data.token_budget"), HasSubstr("out of memory")));
  const auto third = device_->allocate(2000);
  EXPECT_TRUE(third.ok()) << "the device goes on";
}

TEST_F(DeviceCudaWork, AFailureThatPassesIsKeptByItsStreamAlone) {
  runtime_->fail("copy", {RuntimeError::Kind::kOther, "cudaErrorInvalidValue", "invalid argument"});
  const auto stream = device_->make_stream(), other = device_->make_stream();
  char from[8] = {}, to[8] = {};
  device_->copy_bytes(*stream, to, from, sizeof to);
  EXPECT_TRUE(other->wait_idle().ok());
  EXPECT_EQ(stream->wait_idle().message(),
            "cuda:0: a copy of 8 bytes: invalid argument (cudaErrorInvalidValue)");
  EXPECT_TRUE(stream->wait_idle().ok()) << "the error is cleared";
}

// After a sticky error every call fails, whatever it is: all must name the first.
TEST_F(DeviceCudaWork, ALostCardNamesWhatFailedFirstAndSaysToStartAgain) {
  const auto stream = device_->make_stream();
  const auto event = device_->make_event();
  const auto buffer = device_->allocate(100);
  ASSERT_TRUE(buffer.ok());
  runtime_->fail("synchronize_stream", illegal_address());
  const auto lost = AllOf(
      HasSubstr("cuda:0 is lost to this process since its first failure, work put in before a "
                "wait: an illegal memory access was encountered (cudaErrorIllegalAddress)"),
      HasSubstr("start the same command again, it goes on from the last checkpoint"));
  EXPECT_THAT(stream->wait_idle().message(), lost);
  EXPECT_THAT(stream->wait_idle().message(), lost);
  EXPECT_THAT(event->wait().message(), lost);
  EXPECT_THAT(device_->allocate(8).status().message(), lost);
  EXPECT_THAT(device_->allocate_host(8).status().message(), lost);
  EXPECT_THAT(device_->make_stream()->wait_idle().message(), lost);
  char from[8] = {}, to[8] = {};
  device_->copy_bytes(*stream, to, from, sizeof to);
  stream->record(*event);
  stream->wait_for(*event);
  EXPECT_THAT(stream->wait_idle().message(), lost);
}

// A launch is refused at once, the wait that follows only finds the card gone.
TEST_F(DeviceCudaWork, ALaunchThatLosesTheCardIsTheOneThatIsNamed) {
  const auto stream = device_->make_stream();
  static_cast<KernelStream&>(*stream).queue().error =
      "kernel add could not be launched: an illegal memory access was encountered";
  runtime_->fail("synchronize_stream", illegal_address());
  const Status status = stream->wait_idle();
  EXPECT_THAT(status.message(),
              HasSubstr("first failure, kernel add could not be launched: an illegal memory"));
  EXPECT_THAT(status.message(), Not(HasSubstr("before a wait")));
}

TEST_F(DeviceCudaWork, AStreamOrEventThatCannotBeMadeSaysSoWhenItIsUsed) {
  runtime_->fail("create_event", no_memory());
  const auto stream = device_->make_stream();
  const auto event = device_->make_event();
  EXPECT_EQ(event->wait().code(), StatusCode::kResourceExhausted);
  stream->record(*event);
  EXPECT_THAT(stream->wait_idle().message(), HasSubstr("cuda:0: no event: out of memory"));
  runtime_->fail("create_stream", no_memory());
  EXPECT_THAT(device_->make_stream()->wait_idle().message(), HasSubstr("cuda:0: no stream"));
}

TEST(EventTimer, GivesWhatTheRuntimeMeasuresAndDestroysItsEvents) {
  auto owned = std::make_unique<FakeRuntime>(FakeRuntime::Machine{});
  FakeRuntime& runtime = *owned;
  CudaCard card(kCuda0, std::move(owned));
  Queue queue;
  ASSERT_TRUE(runtime.create_stream(&queue.stream).ok());
  EventTimer timer(card);
  const auto nothing = [] { return ok_status(); };
  EXPECT_EQ(timer.time_ms(queue, nothing).value(), 1.0);
  EXPECT_EQ(timer.time_ms(queue, nothing).value(), 2.0);
  const auto refused = timer.time_ms(queue, [] { return internal_error("no plan"); });
  EXPECT_EQ(refused.status().message(), "no plan");
  for (const std::string call : {"create_event", "record_event", "synchronize_event", "elapsed"}) {
    FakeRuntime::Machine machine;
    auto failing = std::make_unique<FakeRuntime>(machine);
    FakeRuntime& other = *failing;
    CudaCard failing_card(kCuda0, std::move(failing));
    Queue its_queue;
    ASSERT_TRUE(other.create_stream(&its_queue.stream).ok());
    other.fail(call, {RuntimeError::Kind::kOther, "cudaErrorUnknown", "unknown error"});
    const auto time = EventTimer(failing_card).time_ms(its_queue, nothing);
    ASSERT_FALSE(time.ok()) << call;
    EXPECT_THAT(time.status().message(), HasSubstr("unknown error (cudaErrorUnknown)"));
    EXPECT_EQ(other.events(), 0u) << call;
    (void)other.destroy_stream(its_queue.stream);
  }
  EXPECT_EQ(runtime.events(), 0u);
  (void)runtime.destroy_stream(queue.stream);
}

}  // namespace
}  // namespace percheron::cuda
