#include "data/transport/region_pool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/random.h"

namespace percheron {
namespace {

constexpr uint64_t kMegabyte = uint64_t{1} << 20;

TEST(RegionPool, AFreeRegionIsTakenAgain) {
  RegionPool pool("test", 100 * kMegabyte);
  SharedRegion region = pool.take(kMegabyte).value();
  const std::byte* const memory = region.bytes().data();
  pool.give_back(std::move(region));
  EXPECT_EQ(pool.counts().idle_bytes, kMegabyte);
  SharedRegion again = pool.take(kMegabyte - 5000).value();
  EXPECT_EQ(again.bytes().data(), memory);
  EXPECT_EQ(pool.counts().created, 1);
  EXPECT_EQ(pool.counts().reused, 1);
  EXPECT_EQ(pool.counts().idle_bytes, 0u);
}

TEST(RegionPool, NobodyGetsOneThatIsTaken) {
  RegionPool pool("test", 100 * kMegabyte);
  const SharedRegion first = pool.take(kMegabyte).value();
  const SharedRegion second = pool.take(kMegabyte).value();
  EXPECT_NE(first.bytes().data(), second.bytes().data());
  EXPECT_EQ(pool.counts().created, 2);
}

TEST(RegionPool, TheSmallestThatFitsIsTaken) {
  RegionPool pool("test", 100 * kMegabyte);
  std::vector<SharedRegion> regions;
  for (const uint64_t megabytes : {8, 2, 4}) {
    regions.push_back(pool.take(megabytes * kMegabyte).value());
  }
  for (SharedRegion& region : regions) pool.give_back(std::move(region));
  EXPECT_EQ(pool.take(3 * kMegabyte).value().size(), 4 * kMegabyte);
}

TEST(RegionPool, OthersCanReadAndNotWrite) {
  RegionPool pool("test", kMegabyte);
  SharedRegion region = pool.take(10'000).value();
  region.writable_bytes()[3] = std::byte{7};
  const int fd = region.fd().get();
  EXPECT_LT(::pwrite(fd, "x", 1, 0), 0);
  EXPECT_EQ(::mmap(nullptr, region.size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_LT(::ftruncate(fd, 0), 0);
  const auto reader = SharedRegion::map_at_least(region.fd().duplicate().value(), 10'000,
                                                 SharedRegion::Access::kRead);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ(reader->bytes()[3], std::byte{7});
  // Who has taken it goes on writing: it will be used again.
  region.writable_bytes()[3] = std::byte{8};
  EXPECT_EQ(reader->bytes()[3], std::byte{8});
}

TEST(RegionPool, WhatWaitsIsLimited) {
  RegionPool pool("test", 10 * kMegabyte);
  std::vector<SharedRegion> regions;
  for (int i = 0; i < 5; ++i) regions.push_back(pool.take(4 * kMegabyte).value());
  for (SharedRegion& region : regions) pool.give_back(std::move(region));
  EXPECT_EQ(pool.counts().idle_bytes, 8 * kMegabyte);
  EXPECT_EQ(pool.counts().dropped, 3);
  pool.give_back(pool.take(11 * kMegabyte).value());
  EXPECT_LE(pool.counts().idle_bytes, 10 * kMegabyte);
}

// Sizes grow and shrink at random: what is taken and what waits are never more than was once taken.
TEST(RegionPool, NeedsNoMoreMemoryThanItsTakersHad) {
  RegionPool pool("test", 1000 * kMegabyte);
  Random random(3);
  std::vector<SharedRegion> taken;
  uint64_t taken_bytes = 0, most = 0;
  for (int i = 0; i < 2000; ++i) {
    if (taken.size() < 5 && random.next() % 2 == 0) {
      taken.push_back(pool.take(1 + random.next() % (8 * kMegabyte)).value());
      taken_bytes += taken.back().size();
      most = std::max(most, taken_bytes);
    } else if (!taken.empty()) {
      std::swap(taken[random.next() % taken.size()], taken.back());
      taken_bytes -= taken.back().size();
      pool.give_back(std::move(taken.back()));
      taken.pop_back();
    }
    ASSERT_LE(pool.counts().idle_bytes + taken_bytes, most) << i;
  }
  EXPECT_GT(pool.counts().reused, pool.counts().created);
}

TEST(RegionPool, SizesAreRoundedUpByAnEighthAtMost) {
  std::set<uint64_t> sizes;
  for (uint64_t bytes = 100'000; bytes < 10'000'000; bytes += 1237) {
    const uint64_t size = RegionPool::size_for(bytes);
    EXPECT_GE(size, bytes);
    EXPECT_LE(size, bytes + bytes / 8 + 1);
    sizes.insert(size);
  }
  EXPECT_LT(sizes.size(), 70u);
  EXPECT_EQ(RegionPool::size_for(1), 4096u);
}

}  // namespace
}  // namespace percheron
