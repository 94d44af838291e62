// Small pieces of host memory on their way to a device, by pinned memory that is used again.

#include "kernels/upload_ring.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/device.h"

namespace percheron {
namespace {

class UploadRingTest : public testing::Test {
 protected:
  UploadRingTest()
      : device_(open_device({DeviceKind::kEmulated, 0}, {.threads = 1}).value()),
        stream_(device_->make_stream()) {}

  Tensor ints(int64_t count) { return device_->make_tensor(DType::kI32, {count}).value(); }
  void upload(const TensorView& to, std::vector<int32_t> from) {
    device_->upload_bytes(*stream_, to.data(), from.data(), to.bytes());
    std::fill(from.begin(), from.end(), -1);  // It may go at once.
  }
  std::vector<int32_t> download(const TensorView& from) {
    std::vector<int32_t> values(static_cast<size_t>(from.elements()));
    device_->copy_bytes(*stream_, values.data(), from.data(), from.bytes());
    const Status status = stream_->wait_idle();
    EXPECT_TRUE(status.ok()) << status.message();
    return values;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(UploadRingTest, TheSourceMayGoAtOnce) {
  const Tensor x = ints(3), y = ints(1);
  upload(x, {1, 2, 3});
  upload(y, {4});
  EXPECT_EQ(download(x), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(download(y), std::vector<int32_t>{4});
}

TEST_F(UploadRingTest, MemoryIsGotOnceAndNothingIsWaitedForWhereTheStreamKeepsUp) {
  const Tensor x = ints(1000);
  for (int step = 0; step < 5; ++step) {
    for (int i = 0; i < 300; ++i) upload(x, std::vector<int32_t>(1000, i));
    EXPECT_EQ(device_->counters().waits, static_cast<uint64_t>(step));
    EXPECT_EQ(download(x), std::vector<int32_t>(1000, 299));
  }
  EXPECT_EQ(device_->counters().host_allocations, 1u);
}

// Eight megabytes are under way at most; what a whole turn ago was put in is copied by then.
TEST_F(UploadRingTest, WhatIsStillUnderWayIsNotOverwritten) {
  constexpr int64_t kInts = 300'000;  // more than half of a segment
  std::vector<Tensor> all;
  for (int32_t i = 0; i < 30; ++i) {
    all.push_back(ints(kInts));
    upload(all.back(), std::vector<int32_t>(kInts, i));
  }
  EXPECT_GT(device_->counters().waits, 0u);
  for (int32_t i = 0; i < 30; ++i) {
    ASSERT_EQ(download(all[static_cast<size_t>(i)]), std::vector<int32_t>(kInts, i));
  }
}

TEST_F(UploadRingTest, APieceLargerThanTheRingGoesInParts) {
  std::vector<int32_t> values(5'000'001);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i);
  const Tensor x = ints(std::ssize(values));
  upload(x, values);
  EXPECT_EQ(download(x), values);
  EXPECT_EQ(device_->counters().host_allocations, 1u);
}

}  // namespace
}  // namespace percheron
