#include "data/padded_batches.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "data/batch_order.h"

namespace percheron {
namespace {

size_t bucket_of(std::span<const int64_t> bounds, int32_t length) {
  return static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), length) -
                             bounds.begin());
}

// The draws bucket by bucket, each bucket's in the order given, and where the buckets begin.
std::pair<std::vector<Draw>, std::vector<size_t>> split(std::span<const Draw> draws,
                                                        std::span<const int64_t> bounds) {
  std::vector<size_t> begin(bounds.size() + 1);
  for (const Draw& draw : draws) {
    const size_t bucket = bucket_of(bounds, draw.length);
    PERCHERON_CHECK(bucket < bounds.size(), "the last bucket holds the longest sample");
    ++begin[bucket + 1];
  }
  for (size_t bucket = 0; bucket < bounds.size(); ++bucket) begin[bucket + 1] += begin[bucket];
  std::vector<Draw> parted(draws.size());
  std::vector<size_t> at(begin.begin(), begin.end() - 1);
  for (const Draw& draw : draws) parted[at[bucket_of(bounds, draw.length)]++] = draw;
  return {std::move(parted), std::move(begin)};
}

}  // namespace

void fill_batches(std::span<const Draw> draws, const BatchLimits& limits, PaddedBatches& batches) {
  int64_t samples = 0;
  int32_t longest = 0;
  const auto close = [&] {
    batches.offsets.push_back(batches.offsets.back() + samples);
    batches.longest.push_back(longest);
  };
  for (const Draw& draw : draws) {
    const int32_t with = std::max(longest, draw.length);
    if (samples > 0 &&
        (samples == limits.samples_max || (samples + 1) * with > limits.token_budget)) {
      close();
      samples = 0;
      longest = 0;
    }
    ++samples;
    longest = std::max(longest, draw.length);
  }
  if (samples > 0) close();
  batches.draws.insert(batches.draws.end(), draws.begin(), draws.end());
}

PaddedBatches sorted_batches(std::vector<Draw> draws, const BatchLimits& limits) {
  std::stable_sort(draws.begin(), draws.end(),
                   [](const Draw& a, const Draw& b) { return a.length < b.length; });
  PaddedBatches batches;
  fill_batches(draws, limits, batches);
  return batches;
}

PaddedBatches shuffled_batches(std::vector<Draw> draws, const BatchLimits& limits, Random& random) {
  shuffle(std::span(draws), random);
  PaddedBatches batches;
  fill_batches(draws, limits, batches);
  return batches;
}

PaddedBatches bucketed_batches(std::span<const Draw> draws, const BatchLimits& limits,
                               std::span<const int64_t> bounds, Random& random) {
  auto [parted, begin] = split(draws, bounds);
  PaddedBatches by_bucket;
  by_bucket.draws.reserve(draws.size());
  std::vector<int64_t> counts;
  std::vector<size_t> next;  // the bucket's next batch in by_bucket
  for (size_t bucket = 0; bucket < bounds.size(); ++bucket) {
    const std::span<Draw> own =
        std::span(parted).subspan(begin[bucket], begin[bucket + 1] - begin[bucket]);
    shuffle(own, random);
    next.push_back(by_bucket.longest.size());
    fill_batches(own, limits, by_bucket);
    counts.push_back(static_cast<int64_t>(by_bucket.longest.size() - next.back()));
  }
  PaddedBatches batches;
  batches.draws.reserve(draws.size());
  for (const uint32_t bucket : order_batches(counts, BatchOrder::kInterleaved, random)) {
    const size_t batch = next[bucket]++;
    batches.draws.insert(batches.draws.end(), by_bucket.draws.begin() + by_bucket.offsets[batch],
                         by_bucket.draws.begin() + by_bucket.offsets[batch + 1]);
    batches.offsets.push_back(static_cast<int64_t>(batches.draws.size()));
    batches.longest.push_back(by_bucket.longest[batch]);
  }
  return batches;
}

}  // namespace percheron
