#include "data/batch_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace percheron {
namespace {

__extension__ using Wide = unsigned __int128;

// Positions in parts of a batch: 2^kBits to a stride.
constexpr int kBits = 30;

struct Placed {
  uint64_t position;
  uint32_t bucket;
};

std::vector<uint32_t> interleaved(std::span<const int64_t> counts, size_t total, Random& random) {
  std::vector<Placed> placed;
  placed.reserve(total);
  constexpr uint64_t kStride = uint64_t{1} << kBits;
  for (size_t bucket = 0; bucket < counts.size(); ++bucket) {
    const auto count = static_cast<uint64_t>(counts[bucket]);
    if (count == 0) continue;
    const uint64_t offset = random.below(kStride);
    for (uint64_t j = 0; j < count; ++j) {
      // A quarter more than its place, so that the first is not below 0.
      const uint64_t strides = j * kStride + offset + random.below(kStride / 2 + 1);
      const auto position = static_cast<Wide>(strides) * total / count;
      placed.push_back({static_cast<uint64_t>(position), static_cast<uint32_t>(bucket)});
    }
  }
  // Moved by at most a quarter of their stride, a bucket's batches keep their order; equal places
  // go to the lower bucket.
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return a.position != b.position ? a.position < b.position : a.bucket < b.bucket;
  });
  std::vector<uint32_t> order(placed.size());
  std::transform(placed.begin(), placed.end(), order.begin(),
                 [](const Placed& batch) { return batch.bucket; });
  return order;
}

enum class Repeat { kAllowed, kAvoided };

std::vector<uint32_t> drawn(std::span<const int64_t> counts, size_t total, Repeat repeat,
                            Random& random) {
  std::vector<int64_t> left(counts.begin(), counts.end());
  std::vector<uint32_t> order;
  order.reserve(total);
  size_t last = counts.size();
  while (order.size() < total) {
    const auto weight = [&](size_t bucket) -> uint64_t {
      const bool excluded = repeat == Repeat::kAvoided && bucket == last;
      return left[bucket] == 0 || excluded ? 0 : static_cast<uint64_t>(counts[bucket]);
    };
    uint64_t weights = 0;
    for (size_t bucket = 0; bucket < counts.size(); ++bucket) weights += weight(bucket);
    if (weights > 0) {
      uint64_t ticket = random.below(weights);
      size_t bucket = 0;
      for (; ticket >= weight(bucket); ++bucket) ticket -= weight(bucket);
      last = bucket;
    }  // Else only the last one has batches.
    --left[last];
    order.push_back(static_cast<uint32_t>(last));
  }
  return order;
}

}  // namespace

std::vector<uint32_t> order_batches(std::span<const int64_t> counts, BatchOrder order,
                                    Random& random) {
  const auto total = static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  switch (order) {
    case BatchOrder::kInterleaved: return interleaved(counts, total, random);
    case BatchOrder::kWeightedRandom: return drawn(counts, total, Repeat::kAllowed, random);
    case BatchOrder::kNeverTwice: return drawn(counts, total, Repeat::kAvoided, random);
  }
  return {};
}

OrderStatistics order_statistics(std::span<const uint32_t> order, size_t buckets) {
  OrderStatistics statistics;
  statistics.shares.resize(buckets);
  statistics.quartile_shares.resize(buckets);
  statistics.runs.resize(1);
  if (order.empty()) return statistics;
  std::vector<size_t> end(buckets);  // behind the last batch of each bucket
  int64_t run = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t bucket = order[i];
    PERCHERON_CHECK(bucket < buckets, "a batch's bucket is one of those counted");
    const size_t quarter = std::min<size_t>(3, i * 4 / order.size());
    ++statistics.shares[bucket];
    ++statistics.quartile_shares[bucket][quarter];
    end[bucket] = i + 1;
    ++run;
    if (i + 1 == order.size() || order[i + 1] != bucket) {
      const auto counted = static_cast<size_t>(std::min(run, kRunCountedMax));
      if (statistics.runs.size() <= counted) statistics.runs.resize(counted + 1);
      ++statistics.runs[counted];
      statistics.longest_run = std::max(statistics.longest_run, run);
      run = 0;
    }
  }
  const auto total = static_cast<double>(order.size());
  size_t first_end = order.size();
  for (size_t bucket = 0; bucket < buckets; ++bucket) {
    statistics.shares[bucket] /= total;
    if (end[bucket] > 0) first_end = std::min(first_end, end[bucket]);
    for (size_t quarter = 0; quarter < 4; ++quarter) {
      // Batch i is in quarter 4 i / n, so that quarter q begins at the first i >= q n / 4.
      const size_t begin = (quarter * order.size() + 3) / 4;
      const size_t stop = ((quarter + 1) * order.size() + 3) / 4;
      double& share = statistics.quartile_shares[bucket][quarter];
      if (stop > begin) share /= static_cast<double>(stop - begin);
      statistics.quartile_deviation_max =
          std::max(statistics.quartile_deviation_max, std::abs(share - statistics.shares[bucket]));
    }
  }
  statistics.all_present_until = static_cast<double>(first_end) / total;
  return statistics;
}

}  // namespace percheron
