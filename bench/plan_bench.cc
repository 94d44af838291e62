// Speed of planning an epoch and of finding buckets, on lengths like those of a published training
// set (902,087 samples, 2,068 tokens on average). One thread.

#include <benchmark/benchmark.h>

#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "bench/stand_in_lengths.h"
#include "data/batch_order.h"
#include "data/epoch_plan.h"
#include "data/length_buckets.h"

namespace percheron {
namespace {

constexpr int64_t kSamples = 902087, kManySamples = 10'000'000;

// In random order.
SampleSelection make_selection(int64_t samples, int64_t token_budget) {
  std::vector<int32_t> lengths(static_cast<size_t>(samples));
  Random random(1);
  for (int32_t& length : lengths) length = static_cast<int32_t>(stand_in_length(random.uniform()));
  PlanOptions options;
  options.token_budget = token_budget;
  auto selection = select_samples(lengths, options);
  PERCHERON_CHECK(selection.ok(), selection.status().message());
  return *std::move(selection);
}

void plan_epoch(benchmark::State& state, EpochOrder order) {
  const int64_t samples = state.range(0);
  PlanOptions options;
  options.order = order;
  options.token_budget = state.range(1);
  const SampleSelection selection = make_selection(samples, options.token_budget);
  const Status resolved = resolve_buckets(selection, options);
  PERCHERON_CHECK(resolved.ok(), resolved.message());
  int64_t epoch = 0;
  double fill = 0, efficiency = 0;
  for (auto _ : state) {
    const EpochPlan plan = EpochPlan::make(selection, options, epoch++);
    fill = plan.fill();
    efficiency = plan.efficiency();
  }
  state.SetItemsProcessed(state.iterations() * samples);
  state.counters["fill"] = fill;
  state.counters["efficiency"] = efficiency;
}

void with_budgets(benchmark::internal::Benchmark* bench) {
  bench->Unit(benchmark::kMillisecond);
  for (const int64_t budget : {8192, 16384, 49152}) bench->Args({kSamples, budget});
  bench->Args({kManySamples, 49152});
}
BENCHMARK_CAPTURE(plan_epoch, packed, EpochOrder::kPacked)->Apply(with_budgets);
BENCHMARK_CAPTURE(plan_epoch, sorted, EpochOrder::kSorted)->Apply(with_budgets);
BENCHMARK_CAPTURE(plan_epoch, shuffled, EpochOrder::kShuffled)->Apply(with_budgets);
BENCHMARK_CAPTURE(plan_epoch, bucketed, EpochOrder::kBucketed)->Apply(with_budgets);

void find_buckets(benchmark::State& state, PaddingModel model) {
  const SampleSelection selection = make_selection(kSamples, 8192);
  for (auto _ : state) {
    const auto histogram = LengthHistogram::make(selection.lengths);
    benchmark::DoNotOptimize(
        optimal_bounds(*histogram, model, BatchLimits{49152, 64}, state.range(0)));
  }
}
BENCHMARK_CAPTURE(find_buckets, upper_bound, PaddingModel::kUpperBound)
    ->Arg(6)
    ->Arg(32)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(find_buckets, expected_maximum, PaddingModel::kExpectedMaximum)
    ->Arg(6)
    ->Arg(32)
    ->Unit(benchmark::kMillisecond);

void interleave(benchmark::State& state) {
  const std::vector<int64_t> counts = {2120, 4017, 5471, 7493, 8009, 19581};
  Random random(1);
  for (auto _ : state)
    benchmark::DoNotOptimize(order_batches(counts, BatchOrder::kInterleaved, random));
}
BENCHMARK(interleave)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace percheron

BENCHMARK_MAIN();
