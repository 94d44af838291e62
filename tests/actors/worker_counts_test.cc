// What workers count, and what a run makes of it.

#include "actors/service/worker_counts.h"

#include <gtest/gtest.h>

namespace percheron {
namespace {

FeatureSources sources(int64_t files, int64_t hits, int64_t misses) {
  FeatureSources sources;
  sources.files = OfflineCounters{.read = files, .absent = 1};
  sources.cache = FeatureCacheCounters{.memory_bytes = 100, .hits = hits, .misses = misses};
  return sources;
}

TEST(WorkerCountSums, LastWordsOfEachProcessCount) {
  const PlacedDevices alpha{"alpha", {{DeviceKind::kCpu, 0}}}, beta{"beta", {{DeviceKind::kCpu, 0}}};
  WorkerCountSums sums;
  EXPECT_FALSE(sums.sums().files || sums.sums().cache)
      << "nothing is counted where nothing is said";
  sums.take(alpha, counts_of(sources(5, 1, 2), 0));
  sums.take(alpha, counts_of(sources(7, 3, 4), 0));
  sums.take(beta, counts_of(sources(10, 0, 1), 0));
  EXPECT_EQ(sums.sums().files->read, 17);
  EXPECT_EQ(sums.sums().cache->misses, 5);
  EXPECT_EQ(sums.sums().cache->memory_bytes, 200u);
  sums.take(alpha, counts_of(sources(1, 0, 1), 1));  // It was started again,
  EXPECT_EQ(sums.sums().files->read, 18);
  EXPECT_EQ(sums.sums().files->absent, 3);
  EXPECT_EQ(sums.sums().cache->memory_bytes, 200u) << "what it held is gone";
  sums.take(beta, counts_of(sources(2, 0, 0), 0));  // and this one was taken out meanwhile.
  EXPECT_EQ(sums.sums().files->read, 20);
}

TEST(WorkerCountSums, WithoutACacheOnlyFilesAreCounted) {
  FeatureSources only_files;
  only_files.files = OfflineCounters{.read = 3};
  WorkerCountSums sums;
  sums.take({"alpha", {{DeviceKind::kCpu, 0}}}, counts_of(only_files, 0));
  EXPECT_EQ(sums.sums().files->read, 3);
  EXPECT_FALSE(sums.sums().cache);
}

}  // namespace
}  // namespace percheron
