#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/length_buckets.h"

namespace percheron {

/// Figures of the one training set for which somebody published buckets and their interleaving
/// (902,087 samples, 1.866 billion tokens). How its efficiencies were estimated is not known.
namespace published {
inline constexpr int64_t kSamples = 902087;
inline constexpr double kTokens = 1.866e9;
inline constexpr int64_t kBounds[] = {770, 1216, 1728, 2432, 3296, 8192};
inline constexpr int64_t kBatchSamples[] = {64, 49, 33, 23, 17, 11};
inline constexpr double kEfficiency = 0.868;
inline constexpr double kGeometricEfficiency = 0.774;
inline constexpr int64_t kBatches[] = {2120, 4017, 5471, 7493, 8009, 19581};
inline constexpr int64_t kRuns[] = {0, 39126, 3391, 261};  // [n]: runs of n batches of one bucket
}  // namespace published

/// Bounds, what the models expect of them and what an epoch planned with them gives.
struct ScoredBounds {
  std::string name;
  BucketBounds bounds;
  std::vector<BucketEstimate> upper_bound, expected_maximum;  // by both models
  std::vector<int64_t> planned_batches;                       // of the epoch, by bucket
  double planned_efficiency = 0;
  std::optional<double> published_efficiency;
};

struct BucketComparison {
  LengthHistogram lengths;
  BatchLimits limits;
  /// "expected maximum" and "upper bound", the optima of the two models; "geometric", "quantile";
  /// "published" for lengths like those of that set; "given" where bounds were given.
  std::vector<ScoredBounds> scored;
};

/// Finds the best bounds of at most `buckets` buckets and compares them with others. `given` may be
/// empty. kInvalidArgument for lengths, limits, buckets or bounds that can't be.
Result<BucketComparison> compare_buckets(std::span<const int32_t> lengths,
                                         const BatchLimits& limits, int64_t buckets,
                                         const BucketBounds& given, uint64_t seed);

}  // namespace percheron
