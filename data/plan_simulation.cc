#include "data/plan_simulation.h"

#include <algorithm>
#include <numeric>

#include "base/random.h"
#include "base/units.h"

namespace percheron {
namespace {

Random order_random(uint64_t seed) { return Random::keyed(seed, "simulated batch order"); }

Status check_counts(std::span<const int64_t> counts) {
  if (counts.empty() || counts.size() > static_cast<size_t>(kBucketsMax))
    return invalid_argument(std::to_string(counts.size()) + " counts of batches, expected 1 to " +
                            std::to_string(kBucketsMax));
  int64_t total = 0;
  for (size_t bucket = 0; bucket < counts.size(); ++bucket) {
    if (counts[bucket] < 0 || counts[bucket] > kSimulatedBatchesMax)
      return invalid_argument("bucket " + std::to_string(bucket) + " has " +
                              std::to_string(counts[bucket]) + " batches, expected 0 to " +
                              format_count(kSimulatedBatchesMax));
    total += counts[bucket];
  }
  if (0 < total && total <= kSimulatedBatchesMax) return ok_status();
  return invalid_argument(format_count(static_cast<uint64_t>(total)) +
                          " batches in all, expected 1 to " + format_count(kSimulatedBatchesMax));
}

}  // namespace

std::string_view batch_order_name(BatchOrder order) {
  switch (order) {
    case BatchOrder::kInterleaved: return "interleaved";
    case BatchOrder::kWeightedRandom: return "weighted random";
    case BatchOrder::kNeverTwice: return "never twice";
  }
  return "";
}

Result<BatchOrderSimulation> simulate_batch_order(std::span<const int64_t> counts, BatchOrder order,
                                                  const Seeds& seeds) {
  PERCHERON_RETURN_IF_ERROR(check_counts(counts));
  BatchOrderSimulation simulation;
  simulation.order = order;
  simulation.batches = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  simulation.quartile_shares.resize(counts.size());
  for (int64_t i = 0; i < seeds.count; ++i) {
    Random random = order_random(seeds.first + static_cast<uint64_t>(i));
    const OrderStatistics seen =
        order_statistics(order_batches(counts, order, random), counts.size());
    simulation.shares = seen.shares;
    for (size_t bucket = 0; bucket < counts.size(); ++bucket) {
      for (size_t quarter = 0; quarter < 4; ++quarter)
        simulation.quartile_shares[bucket][quarter].add(seen.quartile_shares[bucket][quarter]);
    }
    simulation.quartile_deviation_max.add(seen.quartile_deviation_max);
    simulation.all_present_until.add(seen.all_present_until);
    ++simulation.longest_runs[seen.longest_run];
    if (simulation.runs.size() < seen.runs.size()) {
      // The seeds before had none of these.
      Spread none;
      for (int64_t before = 0; before < i; ++before) none.add(0);
      simulation.runs.resize(seen.runs.size(), none);
    }
    for (size_t n = 0; n < simulation.runs.size(); ++n)
      simulation.runs[n].add(n < seen.runs.size() ? static_cast<double>(seen.runs[n]) : 0);
  }
  return simulation;
}

std::vector<std::vector<double>> bucket_shares(std::span<const int64_t> counts, BatchOrder order,
                                               uint64_t seed, size_t parts) {
  Random random = order_random(seed);
  const std::vector<uint32_t> batches = order_batches(counts, order, random);
  std::vector<std::vector<double>> shares(counts.size(), std::vector<double>(parts));
  for (size_t part = 0; part < parts; ++part) {
    const size_t begin = part * batches.size() / parts, end = (part + 1) * batches.size() / parts;
    for (size_t i = begin; i < end; ++i) ++shares[batches[i]][part];
    for (std::vector<double>& bucket : shares)
      bucket[part] /= std::max(1.0, static_cast<double>(end - begin));
  }
  return shares;
}

EpochOrderSimulation simulate_epoch_order(const SampleSelection& selection,
                                          const PlanOptions& options,
                                          int64_t micro_batches_per_step, const Seeds& seeds) {
  EpochOrderSimulation simulation;
  simulation.order = options.order;
  const std::vector<int32_t> lengths = lengths_by_position(selection);
  for (int64_t i = 0; i < seeds.count; ++i) {
    PlanOptions seeded = options;
    seeded.seed = seeds.first + static_cast<uint64_t>(i);
    const EpochPlan first = EpochPlan::make(selection, seeded, 0);
    const auto batches = static_cast<double>(first.micro_batches());
    simulation.micro_batches.add(batches);
    simulation.efficiency.add(first.efficiency());
    simulation.fill.add(first.fill());
    simulation.samples_per_batch.add(static_cast<double>(selection.samples.size()) / batches);
    simulation.met_again.add(met_again(first, EpochPlan::make(selection, seeded, 1)));
    simulation.length_mix.add(length_mix(first, lengths, micro_batches_per_step));
  }
  return simulation;
}

PackingArithmetic packing_arithmetic(const SampleSelection& selection, const PlanOptions& options,
                                     int64_t samples_per_batch) {
  PackingArithmetic result;
  result.samples = static_cast<int64_t>(selection.samples.size());
  result.tokens = selection.tokens;
  result.samples_per_batch = samples_per_batch;
  result.batches_unpacked = result.samples;
  result.batches_of_samples = (result.samples + samples_per_batch - 1) / samples_per_batch;
  result.tokens_of_samples = static_cast<double>(std::min(samples_per_batch, result.samples)) *
                             static_cast<double>(result.tokens) /
                             static_cast<double>(result.samples);
  result.batches_packed_least = (result.tokens + options.token_budget - 1) / options.token_budget;
  const EpochPlan plan = EpochPlan::make(selection, options, 0);
  result.batches_packed = plan.micro_batches();
  result.fill = plan.fill();
  return result;
}

}  // namespace percheron
