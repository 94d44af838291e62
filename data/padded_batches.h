#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "data/length_buckets.h"

namespace percheron {

/// A sample of an epoch and the tokens that are used of it.
struct Draw {
  uint32_t sample;
  int32_t length;
};

/// An epoch's padded batches: batch b is draws[offsets[b]] .. draws[offsets[b + 1]], each padded to
/// the longest[b].
struct PaddedBatches {
  std::vector<Draw> draws;
  std::vector<int64_t> offsets = {0};  // [batches + 1]
  std::vector<int32_t> longest;        // [batches]

  int64_t batches() const { return static_cast<int64_t>(longest.size()); }
};

/// Appends `draws` in their order, each batch as many as the limits allow. No draw is longer than
/// the token budget.
void fill_batches(std::span<const Draw> draws, const BatchLimits& limits, PaddedBatches& batches);

/// Batches of neighbours in length, shortest first; equal lengths keep their order. The same in
/// every epoch.
PaddedBatches sorted_batches(std::vector<Draw> draws, const BatchLimits& limits);

/// Batches of a random order.
PaddedBatches shuffled_batches(std::vector<Draw> draws, const BatchLimits& limits, Random& random);

/// Shuffles within each bucket, fills batches bucket by bucket and interleaves them
/// (BatchOrder::kInterleaved). A bucket's last batch takes what is left. bounds: upper bounds,
/// ascending; the last holds every draw.
PaddedBatches bucketed_batches(std::span<const Draw> draws, const BatchLimits& limits,
                               std::span<const int64_t> bounds, Random& random);

}  // namespace percheron
