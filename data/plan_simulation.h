#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "data/batch_order.h"
#include "data/epoch_plan.h"
#include "data/plan_statistics.h"

namespace percheron {

inline constexpr BatchOrder kBatchOrders[] = {BatchOrder::kInterleaved, BatchOrder::kWeightedRandom,
                                              BatchOrder::kNeverTwice};
/// For people: "interleaved", "weighted random", "never twice".
std::string_view batch_order_name(BatchOrder order);

/// Which seeds are tried: first, first + 1, ...
struct Seeds {
  uint64_t first = 42;
  int64_t count = 1;
};

/// An order of batches over several seeds.
struct BatchOrderSimulation {
  BatchOrder order = BatchOrder::kInterleaved;
  int64_t batches = 0;
  std::vector<double> shares;                          // [buckets]
  std::vector<std::array<Spread, 4>> quartile_shares;  // [buckets]
  Spread quartile_deviation_max;                       // the largest of a seed
  std::vector<Spread> runs;                            // as OrderStatistics::runs
  std::map<int64_t, int64_t> longest_runs;             // longest run: seeds that have it
  Spread all_present_until;
};

/// Orders `counts` batches of each bucket with each seed. kInvalidArgument for no bucket, more than
/// kBucketsMax, a count below 0 and more than kSimulatedBatchesMax batches.
Result<BatchOrderSimulation> simulate_batch_order(std::span<const int64_t> counts, BatchOrder order,
                                                  const Seeds& seeds);
inline constexpr int64_t kSimulatedBatchesMax = 100'000'000;

/// The share of each bucket in equal parts of one epoch: [buckets][parts].
std::vector<std::vector<double>> bucket_shares(std::span<const int64_t> counts, BatchOrder order,
                                               uint64_t seed, size_t parts);

/// An epoch order over several seeds; epochs 0 and 1 of each.
struct EpochOrderSimulation {
  EpochOrder order = EpochOrder::kPacked;
  Spread micro_batches;
  Spread efficiency;  // tokens of samples over tokens computed
  Spread fill;        // tokens computed over token budgets
  Spread samples_per_batch;
  Spread met_again;
  Spread length_mix;
};

/// Plans epochs under `options` with each seed. `options` come from resolve_buckets().
EpochOrderSimulation simulate_epoch_order(const SampleSelection& selection,
                                          const PlanOptions& options,
                                          int64_t micro_batches_per_step, const Seeds& seeds);

/// What training in batches of a fixed number of samples costs, and what packing makes of it.
struct PackingArithmetic {
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t samples_per_batch = 0;
  int64_t batches_unpacked = 0;      // of one sample
  int64_t batches_of_samples = 0;    // of samples_per_batch
  double tokens_of_samples = 0;      // of a full one, or of the only one, on average
  int64_t batches_packed_least = 0;  // what any packing needs: tokens over the budget
  int64_t batches_packed = 0;
  double fill = 0;
};

/// `options` with EpochOrder::kPacked.
PackingArithmetic packing_arithmetic(const SampleSelection& selection, const PlanOptions& options,
                                     int64_t samples_per_batch);

}  // namespace percheron
