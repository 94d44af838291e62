// The padded orders of an epoch, and what all orders have in common.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "data/epoch_plan.h"
#include "data/plan_statistics.h"
#include "tests/base/fault_file_system.h"
#include "tests/data/shards.h"
#include "tests/data/stand_in.h"
#include "tests/test_seed.h"

namespace percheron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

SampleSelection select_all(std::span<const int32_t> lengths, const PlanOptions& options) {
  auto selection = select_samples(lengths, options);
  EXPECT_TRUE(selection.ok()) << selection.status().message();
  return *std::move(selection);
}

PlanOptions options_of(EpochOrder order, int64_t budget, int64_t samples_max,
                       const SampleSelection& selection, uint64_t seed = 42) {
  PlanOptions options;
  options.seed = seed;
  options.order = order;
  options.token_budget = budget;
  options.batch_samples_max = samples_max;
  const Status resolved = resolve_buckets(selection, options);
  EXPECT_TRUE(resolved.ok()) << resolved.message();
  return options;
}

TEST(EpochOrders, HoldEverySampleOnceWithinTheLimits) {
  const TestSeed seed(51);
  Random random(seed.value());
  for (int trial = 0; trial < 40; ++trial) {
    PlanOptions limits;
    limits.token_budget = 1 + static_cast<int64_t>(random.below(500));
    std::vector<int32_t> lengths(1 + random.below(300));
    for (int32_t& length : lengths)
      length = 1 + static_cast<int32_t>(random.below(static_cast<uint64_t>(limits.token_budget)));
    const SampleSelection selection = select_all(lengths, limits);
    const auto samples_max = static_cast<int64_t>(1 + random.below(20));
    for (const EpochOrder order : kEpochOrders) {
      const PlanOptions options =
          options_of(order, limits.token_budget, samples_max, selection, random.next());
      const EpochPlan plan = EpochPlan::make(selection, options, trial);
      std::vector<uint32_t> seen;
      for (int64_t m = 0; m < plan.micro_batches(); ++m) {
        const auto samples = plan.samples(m);
        int64_t tokens = 0, longest = 0;
        for (const uint32_t sample : samples) {
          tokens += lengths[sample];
          longest = std::max<int64_t>(longest, lengths[sample]);
        }
        if (is_padded(order)) {
          tokens = longest * static_cast<int64_t>(samples.size());
          EXPECT_LE(static_cast<int64_t>(samples.size()), samples_max);
        }
        EXPECT_EQ(plan.tokens(m), tokens);
        EXPECT_LE(tokens, limits.token_budget);
        seen.insert(seen.end(), samples.begin(), samples.end());
      }
      std::sort(seen.begin(), seen.end());
      EXPECT_EQ(seen, selection.samples) << epoch_order_name(order);
    }
  }
}

using BatchLists = std::vector<std::vector<uint32_t>>;

BatchLists batches_of(const EpochPlan& plan) {
  BatchLists batches;
  for (int64_t m = 0; m < plan.micro_batches(); ++m)
    batches.emplace_back(plan.samples(m).begin(), plan.samples(m).end());
  return batches;
}

// Computed apart from this program.
TEST(EpochOrders, AreTheSameOnEveryMachine) {
  const std::vector<int32_t> lengths = {160, 360, 120, 280, 40, 240, 80, 320, 200, 400};
  const SampleSelection selection = select_all(lengths, {});
  const auto batches = [&](EpochOrder order) {
    PlanOptions options = options_of(order, 800, 4, selection, 7);
    options.bucket_bounds = {128, 256, 416};
    return batches_of(EpochPlan::make(selection, options, 3));
  };
  EXPECT_EQ(batches(EpochOrder::kSorted), (BatchLists{{4, 6, 2, 0}, {8, 5}, {3, 7}, {1, 9}}));
  EXPECT_EQ(batches(EpochOrder::kShuffled), (BatchLists{{1, 6}, {4, 9}, {3, 5}, {7, 8}, {0, 2}}));
  EXPECT_EQ(batches(EpochOrder::kBucketed), (BatchLists{{1, 3}, {7, 9}, {4, 6, 2}, {5, 8, 0}}));
  EXPECT_EQ(batches(EpochOrder::kPacked), (BatchLists{{9, 5, 0}, {1, 6, 4, 3}, {7, 8, 2}}));
}

TEST(EpochOrders, AllButSortedDifferBetweenEpochsAndSeeds) {  // speculators#644: 100 rows, seed 1
  std::vector<int32_t> lengths(100);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = 10 + static_cast<int32_t>(i % 7);
  const SampleSelection selection = select_all(lengths, {});
  const auto batches = [&](EpochOrder order, uint64_t seed, int64_t epoch) {
    return batches_of(EpochPlan::make(selection, options_of(order, 64, 8, selection, seed), epoch));
  };
  for (const EpochOrder order : kEpochOrders) {
    EXPECT_EQ(batches(order, 1, 0), batches(order, 1, 0));
    const bool fixed = order == EpochOrder::kSorted;
    EXPECT_EQ(batches(order, 1, 0) == batches(order, 1, 1), fixed) << epoch_order_name(order);
    EXPECT_EQ(batches(order, 1, 0) == batches(order, 2, 0), fixed) << epoch_order_name(order);
  }
}

TEST(EpochOrders, FillBatchesGreedily) {
  // speculators#867: {1 x 4096, 64 x 64}: neither the tokens nor the samples of a batch run away.
  std::vector<int32_t> lengths(64, 64);
  lengths.push_back(4096);
  const SampleSelection selection = select_all(lengths, {});
  const EpochPlan plan =
      EpochPlan::make(selection, options_of(EpochOrder::kSorted, 4096, 48, selection), 0);
  ASSERT_EQ(plan.micro_batches(), 3);
  EXPECT_EQ(plan.samples(0).size(), 48u);
  EXPECT_EQ(plan.samples(1).size(), 16u);
  EXPECT_EQ(plan.samples(2).size(), 1u);
  EXPECT_EQ(plan.tokens(0), 48 * 64);
  EXPECT_EQ(plan.tokens(2), 4096);
  EXPECT_EQ(plan.efficiency(), 1);
}

TEST(EpochOrders, ReachThePublishedEfficiencies) {
  const std::vector<int32_t> lengths = stand_in_lengths();
  PlanOptions limits;
  limits.token_budget = 49152;
  const SampleSelection selection = select_all(lengths, limits);
  const auto plan = [&](EpochOrder order) {
    return EpochPlan::make(selection, options_of(order, 49152, 64, selection), 0);
  };
  EXPECT_NEAR(plan(EpochOrder::kSorted).efficiency(), 0.99996, 0.00002);
  EXPECT_NEAR(plan(EpochOrder::kShuffled).efficiency(), 0.479, 0.002);
  PlanOptions published = options_of(EpochOrder::kBucketed, 49152, 64, selection);
  const double ours = EpochPlan::make(selection, published, 0).efficiency();
  published.bucket_bounds = kPublishedBounds;
  const EpochPlan bucketed = EpochPlan::make(selection, published, 0);
  EXPECT_NEAR(bucketed.efficiency(), 0.826, 0.002);
  EXPECT_GT(ours, bucketed.efficiency());
  std::vector<int64_t> counts(kPublishedBounds.size());
  for (const uint32_t bucket : buckets_of(bucketed, kPublishedBounds)) ++counts[bucket];
  for (size_t bucket = 0; bucket < counts.size(); ++bucket) {
    EXPECT_NEAR(static_cast<double>(counts[bucket]) / static_cast<double>(kPublishedCounts[bucket]),
                1, 0.05);
  }
}

TEST(EpochOrders, BucketedKeepsSamplesInTheirBuckets) {
  const std::vector<int32_t> lengths = stand_in_lengths(5000);
  PlanOptions limits;
  limits.token_budget = 16384;
  const SampleSelection selection = select_all(lengths, limits);
  const PlanOptions options = options_of(EpochOrder::kBucketed, 16384, 32, selection);
  EXPECT_EQ(options.bucket_bounds.size(), 6u);
  const EpochPlan plan = EpochPlan::make(selection, options, 0);
  const auto buckets = buckets_of(plan, options.bucket_bounds);
  for (int64_t m = 0; m < plan.micro_batches(); ++m) {
    const uint32_t bucket = buckets[static_cast<size_t>(m)];
    for (const uint32_t sample : plan.samples(m)) {
      EXPECT_LE(lengths[sample], options.bucket_bounds[bucket]);
      EXPECT_GT(lengths[sample], bucket == 0 ? 0 : options.bucket_bounds[bucket - 1]);
    }
  }
}

TEST(EpochOrders, BucketsAreRefusedOutsideTheirLimits) {
  const SampleSelection selection = select_all(std::vector<int32_t>{5, 9}, {});
  PlanOptions options;
  options.order = EpochOrder::kBucketed;
  options.buckets = 0;
  EXPECT_THAT(resolve_buckets(selection, options).message(), HasSubstr("data.buckets is 0"));
  options.buckets = 65;
  EXPECT_THAT(resolve_buckets(selection, options).message(), HasSubstr("1 to 64"));
}

TEST(EpochOrders, ASetSmallerThanABatchIsOneBatch) {  // TorchSpec#27: 3 rows, batches of 8
  const SampleSelection selection = select_all(std::vector<int32_t>{5, 9, 7}, {});
  for (const EpochOrder order : {EpochOrder::kSorted, EpochOrder::kShuffled}) {
    const EpochPlan plan = EpochPlan::make(selection, options_of(order, 512, 8, selection), 0);
    EXPECT_EQ(plan.micro_batches(), 1);
    EXPECT_EQ(plan.tokens(0), 27);
  }
}

TEST(PaddedMicroBatch, ExtendsEachDocumentByUnsupervisedTokensOfItsOwn) {
  FaultFileSystem files;
  const std::vector<ShardRow> rows = {{{1, 2, 3, 4, 5, 6}, {0, 0, 0, 0, 1, 1}, "long"},
                                      {{7, 8}, {0, 1}, "short"},
                                      {{12, 13, 14}, {1, 1, 1}, "all"}};
  ASSERT_TRUE(ShardParts(rows).write(files, "t.safetensors").ok());
  const auto dataset = open_dataset(files, {"t.safetensors"});
  PlanOptions options;
  options.order = EpochOrder::kSorted;
  options.token_budget = 20;
  const auto selection = select_samples(*dataset, options);
  const EpochPlan plan = EpochPlan::make(*selection, options, 0);
  ASSERT_EQ(plan.micro_batches(), 1);
  EXPECT_EQ(plan.tokens(0), 18);
  EXPECT_DOUBLE_EQ(plan.efficiency(), 11.0 / 18);
  const MicroBatch batch = make_micro_batch(*dataset, plan, 0);
  EXPECT_THAT(batch.sample_ids, ElementsAre(1, 2, 0));
  EXPECT_THAT(batch.offsets, ElementsAre(0, 6, 12, 18));
  EXPECT_THAT(batch.token_ids,
              ElementsAre(7, 8, 8, 8, 8, 8, 12, 13, 14, 14, 14, 14, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(batch.loss_mask, ElementsAre(0, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1));
  EXPECT_THAT(batch.padding, ElementsAre(4, 3, 0));
  EXPECT_EQ(batch.own_end(1), 9);
  const std::vector<int32_t> last_two = {1, 2};
  EXPECT_THAT(select_documents(batch, last_two).padding, ElementsAre(3, 0));
  options.order = EpochOrder::kPacked;
  const EpochPlan packed = EpochPlan::make(*selection, options, 0);
  EXPECT_THAT(make_micro_batch(*dataset, packed, 0).padding, ElementsAre());
}

TEST(PaddedMicroBatch, CutsASampleOverTheBudget) {  // AngelSlim#288
  FaultFileSystem files;
  ASSERT_TRUE(ShardParts(rows_of_lengths({1000, 20, 30})).write(files, "t.safetensors").ok());
  const auto dataset = open_dataset(files, {"t.safetensors"});
  for (const EpochOrder order : kEpochOrders) {
    PlanOptions options;
    options.order = order;
    options.token_budget = 64;
    options.too_long = TooLong::kTruncate;
    options.unsupervised = Unsupervised::kKeep;
    const auto selection = select_samples(*dataset, options);
    ASSERT_TRUE(resolve_buckets(*selection, options).ok());
    const EpochPlan plan = EpochPlan::make(*selection, options, 0);
    for (int64_t m = 0; m < plan.micro_batches(); ++m) {
      const MicroBatch batch = make_micro_batch(*dataset, plan, m);
      EXPECT_LE(batch.tokens(), 64);
      EXPECT_LE(batch.token_ids.capacity(), 64u);
    }
  }
}

// --- packing ------------------------------------------------------------------------------------

double packed_fill(std::span<const int32_t> lengths, int64_t budget) {
  PlanOptions options;
  options.token_budget = budget;
  return EpochPlan::make(select_all(lengths, options), options, 0).fill();
}

TEST(Packing, FillsItsBudgets) {
  const std::vector<int32_t> lengths = stand_in_lengths();
  EXPECT_GE(packed_fill(lengths, 8192), 0.985);
  for (const int64_t budget : {16384, 32768, 49152}) EXPECT_GE(packed_fill(lengths, budget), 0.995);
}

// How far apart in the data set two samples are that count as neighbours.
constexpr size_t kNeighbours = 100;

// Pairs of neighbours that share a micro-batch.
double neighbours_together(const EpochPlan& plan, size_t samples) {
  std::vector<int64_t> batch(samples);
  for (int64_t m = 0; m < plan.micro_batches(); ++m) {
    for (const uint32_t sample : plan.samples(m)) batch[sample] = m;
  }
  double together = 0;
  for (size_t i = 0; i < samples; ++i) {
    for (size_t j = i + 1; j < std::min(samples, i + 1 + kNeighbours); ++j)
      together += batch[i] == batch[j] ? 1 : 0;
  }
  return together;
}

// Lengths ascend with the position, so that any trace of the data set's order would show.
TEST(Packing, LetsSamplesMeetAsARandomOrderDoes) {
  const std::vector<int32_t> lengths = stand_in_lengths(200000);
  PlanOptions options;
  options.token_budget = 16384;
  const SampleSelection selection = select_all(lengths, options);
  const EpochPlan plan = EpochPlan::make(selection, options, 0);
  double pairs = 0;
  for (int64_t m = 0; m < plan.micro_batches(); ++m) {
    const auto members = static_cast<double>(plan.samples(m).size());
    pairs += members * (members - 1) / 2;
  }
  const double samples = static_cast<double>(lengths.size());
  const double all_pairs = samples * (samples - 1) / 2;
  // Neighbours meet as often as any two; the counts are nearly Poisson.
  const double expected = pairs / all_pairs * samples * kNeighbours;
  EXPECT_NEAR(neighbours_together(plan, lengths.size()), expected, 5 * std::sqrt(expected));
  // And pairs meet again as often as any two meet.
  const EpochPlan next = EpochPlan::make(selection, options, 1);
  const double again = met_again(plan, next) * pairs;
  const double again_expected = pairs * pairs / all_pairs;
  EXPECT_NEAR(again, again_expected, 5 * std::sqrt(again_expected));
}

// By quarter of length: what share of the samples that meet a sample is of each quarter.
std::vector<std::vector<double>> meetings(const EpochPlan& plan, size_t samples) {
  std::vector<std::vector<double>> met(4, std::vector<double>(4));
  const auto quarter = [&](uint32_t sample) { return size_t{sample} * 4 / samples; };
  for (int64_t m = 0; m < plan.micro_batches(); ++m) {
    std::vector<double> members(4);
    for (const uint32_t sample : plan.samples(m)) ++members[quarter(sample)];
    for (size_t a = 0; a < 4; ++a) {
      for (size_t b = 0; b < 4; ++b) met[a][b] += members[a] * (members[b] - (a == b ? 1 : 0));
    }
  }
  for (auto& row : met) {
    double sum = 0;
    for (const double count : row) sum += count;
    for (double& count : row) count /= sum;
  }
  return met;
}

// The reference fills micro-batches in a random order and starts the next when one is full.
TEST(Packing, MixesLengthsAsARandomOrderDoes) {
  const std::vector<int32_t> lengths = stand_in_lengths(200000);
  PlanOptions options;
  options.token_budget = 49152;
  const SampleSelection selection = select_all(lengths, options);
  const EpochPlan packed = EpochPlan::make(selection, options, 0);
  const std::vector<int32_t> by_position = lengths_by_position(selection);
  const auto met = meetings(packed, lengths.size());
  for (size_t a = 0; a < 4; ++a) {
    // Each quarter meets each as often as the other three do, to a few points.
    for (size_t b = 0; b < 4; ++b) EXPECT_NEAR(met[a][b], met[3 - a][b], 0.08) << a << " " << b;
  }
  // Nor is the epoch's order one of lengths: every part has the same mean.
  const std::vector<double> means = mean_lengths(packed, by_position, 20);
  for (const double mean : means) EXPECT_NEAR(mean / means.front(), 1, 0.05);
}

}  // namespace
}  // namespace percheron
