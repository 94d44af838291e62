#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"

namespace percheron {

/// How the batches of several buckets follow each other in an epoch.
enum class BatchOrder {
  /// Bucket i's batches stand at offset_i + j stride_i, where stride_i = all batches / its batches,
  /// with a random offset_i in [0, stride_i), each moved at random by up to a quarter of the
  /// stride, and all are sorted by position. Every bucket spreads over the whole epoch and ends
  /// with it.
  kInterleaved,
  /// The next bucket is drawn in proportion to the buckets' batches at the epoch's beginning, among
  /// those that still have some. Chance uses some up early, and the end has the others alone.
  kWeightedRandom,
  /// As kWeightedRandom, but never the bucket just used while another has batches. The largest
  /// bucket gets fewer turns than its share, and the end has it alone.
  kNeverTwice,
};

/// The bucket of each batch of an epoch, in order; bucket i occurs counts[i] times. A pure function
/// of (counts, order, random's state), the same on every machine.
std::vector<uint32_t> order_batches(std::span<const int64_t> counts, BatchOrder order,
                                    Random& random);

/// Runs of so many batches and more are counted together.
inline constexpr int64_t kRunCountedMax = 64;

/// What an order of batches does to an epoch.
struct OrderStatistics {
  std::vector<double> shares;                          // [buckets], of all batches
  std::vector<std::array<double, 4>> quartile_shares;  // [buckets], of each quarter's batches
  /// The largest difference between a bucket's share of a quarter and of the whole.
  double quartile_deviation_max = 0;
  /// runs[n]: how often n batches of one bucket follow each other without a further one, the last
  /// of at most kRunCountedMax + 1 entries with all longer runs; runs[0] is 0.
  std::vector<int64_t> runs;
  int64_t longest_run = 0;
  /// The share of the epoch before which every bucket that has batches still has one to come.
  double all_present_until = 0;
};

/// order: the bucket of each batch, below `buckets`.
OrderStatistics order_statistics(std::span<const uint32_t> order, size_t buckets);

}  // namespace percheron
