#include "data/transport/shared_region.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace percheron {
namespace {

using testing::HasSubstr;
using Access = SharedRegion::Access;
using Backing = SharedRegion::Backing;

TEST(SharedRegion, IsTheSameMemoryForWhoMapsItsDescriptor) {
  auto region = SharedRegion::create("test", 10'000, Backing::kReserved);
  ASSERT_TRUE(region.ok()) << region.status().message();
  std::ranges::fill(region->writable_bytes(), std::byte{7});
  auto other = SharedRegion::map(region->fd().duplicate().value(), 10'000, Access::kRead);
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_TRUE(std::ranges::equal(other->bytes(), region->bytes()));
  region->writable_bytes()[5] = std::byte{9};
  EXPECT_EQ(other->bytes()[5], std::byte{9});
}

TEST(SharedRegion, OutlivesWhoMadeIt) {
  FileDescriptor fd;
  {
    auto region = SharedRegion::create("test", 4096, Backing::kOnDemand);
    region->writable_bytes()[4095] = std::byte{3};
    fd = region->fd().duplicate().value();
  }
  auto other = SharedRegion::map(std::move(fd), 4096, Access::kRead);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->bytes()[4095], std::byte{3});
}

TEST(SharedRegion, NobodyCanCutItOff) {
  auto region = SharedRegion::create("test", 8192, Backing::kOnDemand);
  ASSERT_TRUE(region.ok());
  EXPECT_LT(::ftruncate(region->fd().get(), 0), 0);
  EXPECT_LT(::ftruncate(region->fd().get(), 1 << 20), 0);
}

TEST(SharedRegion, WhatIsNoneIsRefused) {
  auto region = SharedRegion::create("test", 8192, Backing::kOnDemand);
  auto longer = SharedRegion::map(region->fd().duplicate().value(), 8193, Access::kRead);
  EXPECT_EQ(longer.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(longer.status().message(), HasSubstr("8192 bytes, not 8193"));

  FileDescriptor unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 8192), 0);
  auto loose = SharedRegion::map(std::move(unsealed), 8192, Access::kRead);
  EXPECT_THAT(loose.status().message(), HasSubstr("its size is not sealed"));

  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const FileDescriptor writer(pipe_ends[1]);
  EXPECT_FALSE(SharedRegion::map(FileDescriptor(pipe_ends[0]), 1, Access::kRead).ok());
  EXPECT_FALSE(SharedRegion::map(FileDescriptor(), 1, Access::kRead).ok());
}

TEST(SharedRegion, WithoutBytesIsRefused) {
  EXPECT_EQ(SharedRegion::create("test", 0, Backing::kReserved).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(SharedRegion, TooMuchIsAnErrorAndNoSignal) {
  const auto region = SharedRegion::create("test", size_t{1} << 60, Backing::kReserved);
  EXPECT_FALSE(region.ok());
  EXPECT_THAT(region.status().message(), HasSubstr("test"));
}

TEST(SharedRegion, IsMoved) {
  auto region = SharedRegion::create("test", 4096, Backing::kOnDemand);
  SharedRegion first = std::move(region).value();
  first.writable_bytes()[1] = std::byte{2};
  SharedRegion second = std::move(first);
  EXPECT_EQ(second.bytes()[1], std::byte{2});
  EXPECT_EQ(first.size(), 0u);  // NOLINT: what a moved-from region is, is part of its contract
}

}  // namespace
}  // namespace percheron
