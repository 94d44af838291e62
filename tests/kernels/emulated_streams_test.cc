// What the emulated device promises of its streams: everything is as late as it may be.

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace percheron {
namespace {

constexpr DeviceId kEmulated0{DeviceKind::kEmulated, 0};

/// Sets an environment variable while it lives.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    const char* before = std::getenv(name);
    before_ = before == nullptr ? "" : before;
    PERCHERON_CHECK(setenv(name, value.c_str(), 1) == 0, name);
  }
  ~Setting() { (void)setenv(name_, before_.c_str(), 1); }

 private:
  const char* name_;
  std::string before_;
};

std::unique_ptr<Device> open_emulated() {
  auto device = open_device(kEmulated0, {.threads = 2});
  PERCHERON_CHECK(device.ok(), device.status().message());
  return std::move(*device);
}

class DeviceEmulatedStreams : public testing::Test {
 protected:
  DeviceEmulatedStreams() : device_(open_emulated()), arena_(*device_) {
    PERCHERON_CHECK(arena_.reserve(1 << 20).ok(), "no memory");
  }

  TensorView floats(int64_t count) { return arena_.take(DType::kF32, {count}); }
  void upload(Stream& stream, const TensorView& to, const std::vector<float>& from) {
    device_->copy_bytes(stream, to.data(), from.data(), to.bytes());
  }
  void download(Stream& stream, std::vector<float>& to, const TensorView& from) {
    to.resize(static_cast<size_t>(from.elements()));
    device_->copy_bytes(stream, to.data(), from.data(), from.bytes());
  }
  /// y += x
  void add(Stream& stream, const TensorView& x, const TensorView& y) {
    Context context{*device_, stream, arena_};
    device_->ops().add(context, x, y);
  }

  std::unique_ptr<Device> device_;
  Arena arena_;
};

TEST_F(DeviceEmulatedStreams, NothingIsThereBeforeAWait) {
  const auto stream = device_->make_stream();
  const std::vector<float> ones(100, 1.0f);
  std::vector<float> out(100, 5.0f);
  const TensorView x = floats(100);
  upload(*stream, x, ones);
  add(*stream, x, x);
  download(*stream, out, x);
  EXPECT_TRUE(std::isnan(out[0])) << "a destination is NaN until its copy is waited for";
  ASSERT_TRUE(stream->wait_idle().ok());
  EXPECT_EQ(out, std::vector<float>(100, 2.0f));
}

// The source of a copy is read when the copy runs: who changes it before is found.
TEST_F(DeviceEmulatedStreams, ACopyReadsItsSourceLate) {
  const auto stream = device_->make_stream();
  std::vector<float> values(10, 1.0f), out;
  const TensorView x = floats(10);
  upload(*stream, x, values);
  values.assign(10, 7.0f);
  download(*stream, out, x);
  ASSERT_TRUE(stream->wait_idle().ok());
  EXPECT_EQ(out, std::vector<float>(10, 7.0f));
}

// In order, a buffer may go up and come back before anybody waits.
TEST_F(DeviceEmulatedStreams, ABufferMayGoUpAndComeBack) {
  const auto stream = device_->make_stream();
  std::vector<float> values(10, 1.0f);
  const TensorView x = floats(10);
  upload(*stream, x, values);
  add(*stream, x, x);
  download(*stream, values, x);
  ASSERT_TRUE(stream->wait_idle().ok());
  EXPECT_EQ(values, std::vector<float>(10, 2.0f));
}

TEST_F(DeviceEmulatedStreams, OneStreamDoesNotWaitForAnother) {
  const auto first = device_->make_stream(), second = device_->make_stream();
  const std::vector<float> ones(10, 1.0f);
  std::vector<float> out;
  const TensorView x = floats(10);
  upload(*first, x, ones);
  download(*second, out, x);
  ASSERT_TRUE(second->wait_idle().ok());
  EXPECT_TRUE(std::isnan(out[0])) << "no event, no order";
  ASSERT_TRUE(first->wait_idle().ok());
}

TEST_F(DeviceEmulatedStreams, AnEventOrdersTwoStreams) {
  const auto first = device_->make_stream(), second = device_->make_stream();
  const auto event = device_->make_event();
  const std::vector<float> ones(10, 1.0f), fives(10, 5.0f);
  std::vector<float> out;
  const TensorView x = floats(10);
  upload(*first, x, ones);
  first->record(*event);
  second->wait_for(*event);
  upload(*first, x, fives);  // Behind the event: not what the second stream waits for.
  download(*second, out, x);
  ASSERT_TRUE(second->wait_idle().ok());
  EXPECT_EQ(out, ones);
  ASSERT_TRUE(first->wait_idle().ok());
}

TEST_F(DeviceEmulatedStreams, AThreadWaitsForAnEventWithoutTheRest) {
  const auto stream = device_->make_stream();
  const auto event = device_->make_event();
  EXPECT_TRUE(event->wait().ok()) << "it is in no stream yet";
  const std::vector<float> ones(10, 1.0f);
  std::vector<float> early, late;
  const TensorView x = floats(10);
  upload(*stream, x, ones);
  download(*stream, early, x);
  stream->record(*event);
  download(*stream, late, x);
  ASSERT_TRUE(event->wait().ok());
  EXPECT_EQ(early, ones);
  EXPECT_TRUE(std::isnan(late[0]));
  ASSERT_TRUE(stream->wait_idle().ok());
  EXPECT_EQ(late, ones);
}

TEST_F(DeviceEmulatedStreams, FreeingMemoryWaitsForItsUsers) {
  const auto stream = device_->make_stream();
  const std::vector<float> ones(10, 1.0f);
  std::vector<float> out;
  {
    auto x = device_->make_tensor(DType::kF32, {10});
    ASSERT_TRUE(x.ok());
    upload(*stream, x->view(), ones);
    download(*stream, out, x->view());
  }
  EXPECT_EQ(out, std::vector<float>(10, 1.0f));
}

TEST_F(DeviceEmulatedStreams, CountsWhatWasAskedFor) {
  const DeviceCounters& counters = device_->counters();
  const uint64_t allocations = counters.allocations, waits = counters.waits;
  const auto stream = device_->make_stream();
  const auto event = device_->make_event();
  const auto x = device_->make_tensor(DType::kF32, {10});
  const auto pinned = device_->allocate_host(100);
  ASSERT_TRUE(x.ok() && pinned.ok());
  stream->record(*event);
  ASSERT_TRUE(event->wait().ok());
  ASSERT_TRUE(stream->wait_idle().ok());
  EXPECT_EQ(counters.allocations, allocations + 1);
  EXPECT_EQ(counters.host_allocations, 1u);
  EXPECT_EQ(counters.waits, waits + 2);
}

TEST(DeviceEmulatedMemory, ACardOfSomeBytesSaysWhatIsFree) {
  const Setting setting("PERCHERON_EMULATED_MEMORY_BYTES", "1000");
  const auto device = open_emulated();
  EXPECT_TRUE(device->info().own_memory);
  EXPECT_EQ(device->info().memory_bytes, 1000u);
  const auto first = device->allocate(600);
  ASSERT_TRUE(first.ok());
  const auto second = device->allocate(500);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(second.status().message(),
            "memory of emulated:0: 500 bytes are wanted, 400 of 1000 are free");
}

TEST(DeviceEmulatedMemory, RefusesSettingsThatItDoesNotKnow) {
  for (const auto& [name, value] : {std::pair{"PERCHERON_EMULATED_MEMORY_BYTES", "8GiB"},
                                    std::pair{"PERCHERON_EMULATED_MEMORY_BYTES", "-1"},
                                    std::pair{"PERCHERON_EMULATED_GUARD", "yes"}}) {
    const Setting setting(name, value);
    const auto device = open_device(kEmulated0, {});
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(device.status().message().find(std::string("'") + value + "'"), std::string::npos);
  }
}

// What would end a process on a GPU, ends it here.
using DeviceEmulatedDeathTest = DeviceEmulatedStreams;

TEST_F(DeviceEmulatedDeathTest, AnOperandInHostMemoryIsABug) {
  const auto stream = device_->make_stream();
  std::vector<float> host(10, 1.0f);
  const TensorView on_host(host.data(), DType::kF32, {10});
  EXPECT_DEATH(add(*stream, floats(10), on_host), "\\[10\\] F32 is not in the device's memory");
}

TEST(DeviceEmulatedGuardDeathTest, TheHostCannotTouchDeviceMemory) {
  const Setting setting("PERCHERON_EMULATED_GUARD", "1");
  const auto device = open_emulated();
  const auto stream = device->make_stream();
  const auto x = device->make_tensor(DType::kF32, {10});
  ASSERT_TRUE(x.ok());
  const std::vector<float> ones(10, 1.0f);
  std::vector<float> out(10);
  const TensorView view = x->view();
  device->copy_bytes(*stream, view.data(), ones.data(), view.bytes());
  device->copy_bytes(*stream, out.data(), view.data(), view.bytes());
  ASSERT_TRUE(stream->wait_idle().ok());
  EXPECT_EQ(out, ones) << "copies may";
  // The loads and stores themselves must end the process; how it ends is the sanitizer's choice.
  EXPECT_DEATH(std::fputs(std::to_string(*view.as<volatile float>()).c_str(), stderr), "");
  EXPECT_DEATH(*view.as<volatile float>() = 1, "");
}

}  // namespace
}  // namespace percheron
