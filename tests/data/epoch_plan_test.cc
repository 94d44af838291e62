#include "data/epoch_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/random.h"
#include "tests/base/fault_file_system.h"
#include "tests/data/shards.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Every sample once, within the budget, in tokens() that add up.
void expect_complete(const EpochPlan& plan, const SampleSelection& selection, int64_t budget) {
  std::vector<uint32_t> seen;
  for (int64_t m = 0; m < plan.micro_batches(); ++m) {
    ASSERT_FALSE(plan.samples(m).empty());
    int64_t tokens = 0;
    for (const uint32_t sample : plan.samples(m)) {
      const auto at = std::lower_bound(selection.samples.begin(), selection.samples.end(), sample);
      tokens += selection.lengths[at - selection.samples.begin()];
      seen.push_back(sample);
    }
    EXPECT_EQ(plan.tokens(m), tokens);
    EXPECT_LE(tokens, budget);
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, selection.samples);
}

std::vector<uint32_t> order_of(const EpochPlan& plan) {
  std::vector<uint32_t> order;
  for (int64_t m = 0; m < plan.micro_batches(); ++m)
    order.insert(order.end(), plan.samples(m).begin(), plan.samples(m).end());
  return order;
}

TEST(EpochPlan, HoldsEverySampleOnceForAllLengths) {  // SpecForge#501: lengths 1 to 300
  std::vector<int32_t> lengths(300);
  std::iota(lengths.begin(), lengths.end(), 1);
  for (const int64_t budget : {300, 301, 512, 4096, 1000000}) {
    PlanOptions options;
    options.token_budget = budget;
    const auto selection = select_samples(lengths, options);
    ASSERT_TRUE(selection.ok());
    for (int64_t epoch = 0; epoch < 3; ++epoch)
      expect_complete(EpochPlan::make(*selection, options, epoch), *selection, budget);
  }
}

TEST(EpochPlan, HoldsEverySampleOnceForRandomData) {
  const uint64_t seed = 20240501;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (int trial = 0; trial < 50; ++trial) {
    PlanOptions options;
    options.seed = random.next();
    options.token_budget = 1 + static_cast<int64_t>(random.below(500));
    std::vector<int32_t> lengths(1 + random.below(400));
    for (int32_t& length : lengths)
      length = 1 + static_cast<int32_t>(random.below(static_cast<uint64_t>(options.token_budget)));
    const auto selection = select_samples(lengths, options);
    ASSERT_TRUE(selection.ok());
    expect_complete(EpochPlan::make(*selection, options, trial), *selection, options.token_budget);
  }
}

TEST(EpochPlan, EpochsDifferAndEqualSeedsAgree) {  // speculators#644: 100 rows, seed 1
  PlanOptions options;
  options.seed = 1;
  options.token_budget = 64;
  const std::vector<int32_t> lengths(100, 10);
  const auto selection = select_samples(lengths, options);
  const EpochPlan first = EpochPlan::make(*selection, options, 0);
  EXPECT_EQ(EpochPlan::make(*selection, options, 0).hash(), first.hash());
  EXPECT_EQ(order_of(EpochPlan::make(*selection, options, 0)), order_of(first));
  EXPECT_NE(order_of(EpochPlan::make(*selection, options, 1)), order_of(first));
  options.seed = 2;
  EXPECT_NE(order_of(EpochPlan::make(*selection, options, 0)), order_of(first));
}

TEST(EpochPlan, IsTheSameOnEveryMachine) {
  PlanOptions options;
  options.seed = 7;
  options.token_budget = 10;
  const auto selection = select_samples(std::vector<int32_t>{4, 9, 3, 7, 1, 6, 2}, options);
  const EpochPlan plan = EpochPlan::make(*selection, options, 3);
  std::vector<std::vector<uint32_t>> batches;
  for (int64_t m = 0; m < plan.micro_batches(); ++m)
    batches.emplace_back(plan.samples(m).begin(), plan.samples(m).end());
  EXPECT_EQ(batches, (std::vector<std::vector<uint32_t>>{{3, 6, 4}, {5, 0}, {1}, {2}}));
  EXPECT_EQ(plan.hash(), "4b242eb8945a7cbc0c9fe2a0b115b56c");
}

TEST(EpochPlan, PacksOneLongAndManyShortSamplesEvenly) {  // speculators#867: {1 x 4096, 64 x 64}
  std::vector<int32_t> lengths(64, 64);
  lengths.push_back(4096);
  PlanOptions options;
  options.token_budget = 4096;
  const auto selection = select_samples(lengths, options);
  const EpochPlan plan = EpochPlan::make(*selection, options, 0);
  ASSERT_EQ(plan.micro_batches(), 2);
  EXPECT_EQ(plan.tokens(0), 4096);
  EXPECT_EQ(plan.tokens(1), 4096);
  EXPECT_DOUBLE_EQ(plan.fill(), 1.0);
}

TEST(EpochPlan, FillsMicroBatchesOfRealisticLengthsNearlyFull) {
  Random random(11);
  std::vector<int32_t> lengths(20000);
  for (int32_t& length : lengths)
    length = 20 + static_cast<int32_t>(random.uniform() * random.uniform() * 3000);
  PlanOptions options;
  const auto selection = select_samples(lengths, options);
  EXPECT_GT(EpochPlan::make(*selection, options, 0).fill(), 0.98);
}

TEST(EpochPlan, PlansEachOfAMillionSamplesOnce) {
  Random random(13);
  std::vector<int32_t> lengths(1000000);
  for (int32_t& length : lengths) length = 1 + static_cast<int32_t>(random.below(2000));
  PlanOptions options;
  const auto selection = select_samples(lengths, options);
  const EpochPlan plan = EpochPlan::make(*selection, options, 0);
  std::vector<uint8_t> seen(lengths.size());
  for (int64_t i = 0; i < plan.micro_batches(); ++i) {
    for (const uint32_t sample : plan.samples(i)) ++seen[sample];
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 1000000);
  EXPECT_GT(plan.fill(), 0.98);
}

TEST(EpochPlan, ResumesInTheMiddleWithTheRestAndNothingElse) {
  // TorchSpec#43 (order lost at resume), speculators#898 (rest of the epoch skipped).
  PlanOptions options;
  options.token_budget = 8;
  const std::vector<int32_t> lengths(10, 4);
  const auto selection = select_samples(lengths, options);
  const EpochPlan before = EpochPlan::make(*selection, options, 2);
  for (int64_t cursor = 0; cursor <= before.micro_batches(); ++cursor) {
    std::multiset<uint32_t> trained;
    for (int64_t m = 0; m < cursor; ++m)
      trained.insert(before.samples(m).begin(), before.samples(m).end());
    const EpochPlan after = EpochPlan::make(*selection, options, 2);
    for (int64_t m = cursor; m < after.micro_batches(); ++m)
      trained.insert(after.samples(m).begin(), after.samples(m).end());
    EXPECT_EQ(trained, (std::multiset<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})) << cursor;
  }
}

TEST(SelectSamples, RefusesSamplesOverTheBudgetUnlessTold) {
  const std::vector<int32_t> lengths = {10, 1000, 20, 65};
  PlanOptions options;
  options.token_budget = 64;
  const auto refused = select_samples(lengths, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("sample 1"), HasSubstr("1000"),
                                                HasSubstr("2 of 4"), HasSubstr("too_long")));
  options.too_long = TooLong::kSkip;
  const auto skipped = select_samples(lengths, options);
  EXPECT_THAT(skipped->samples, ElementsAre(0, 2));
  EXPECT_EQ(skipped->too_long_skipped, 2);
  options.too_long = TooLong::kTruncate;  // AngelSlim#288
  const auto cut = select_samples(lengths, options);
  EXPECT_THAT(cut->lengths, ElementsAre(10, 64, 20, 64));
  EXPECT_EQ(cut->truncated, 2);
  EXPECT_EQ(cut->tokens, 158);
}

TEST(SelectSamples, SaysWhyNothingIsLeft) {
  PlanOptions options;
  options.token_budget = 4;
  options.too_long = TooLong::kSkip;
  EXPECT_THAT(select_samples(std::vector<int32_t>{5, 6}, options).status().message(),
              HasSubstr("2 are longer than data.token_budget"));
  options.token_budget = 0;
  EXPECT_THAT(select_samples(std::vector<int32_t>{5, 6}, options).status().message(),
              HasSubstr("data.token_budget is 0"));
  EXPECT_FALSE(select_samples(std::vector<int32_t>{}, PlanOptions()).ok());
}

class MakeMicroBatch : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<ShardRow> rows = {{{1, 2, 3, 4, 5, 6}, {0, 0, 0, 0, 1, 1}, "long"},
                                        {{7, 8}, {0, 1}, "short"},
                                        {{9, 10, 11}, {0, 0, 0}, "unsupervised"},
                                        {{12, 13, 14}, {1, 1, 1}, "all"}};
    ASSERT_TRUE(ShardParts(rows).write(files_, "t.safetensors").ok());
  }

  FaultFileSystem files_;
};

TEST_F(MakeMicroBatch, GathersRowsMasksAndBounds) {
  const auto dataset = open_dataset(files_, {"t.safetensors"});
  PlanOptions options;
  options.token_budget = 20;
  const auto selection = select_samples(*dataset, options);
  EXPECT_EQ(selection->unsupervised_dropped, 1);
  const EpochPlan plan = EpochPlan::make(*selection, options, 5);
  ASSERT_EQ(plan.micro_batches(), 1);
  const MicroBatch batch = make_micro_batch(*dataset, plan, 0);
  EXPECT_EQ(batch.id, (MicroBatchId{5, 0}));
  ASSERT_EQ(batch.documents(), 3);
  ASSERT_EQ(batch.tokens(), 11);
  for (int64_t d = 0; d < 3; ++d) {
    const auto sample = static_cast<int64_t>(batch.sample_ids[d]);
    const auto tokens = dataset->tokens(sample);
    const auto mask = dataset->mask(sample);
    ASSERT_EQ(batch.offsets[d + 1] - batch.offsets[d], dataset->length(sample));
    EXPECT_TRUE(
        std::equal(tokens.begin(), tokens.end(), batch.token_ids.begin() + batch.offsets[d]));
    EXPECT_TRUE(std::equal(mask.begin(), mask.end(), batch.loss_mask.begin() + batch.offsets[d]));
  }
}

TEST_F(MakeMicroBatch, CutsLongSamplesAtTheirEndAndDropsWhatHasNoSupervisionLeft) {
  const auto dataset = open_dataset(files_, {"t.safetensors"});
  PlanOptions options;
  options.token_budget = 4;
  options.too_long = TooLong::kTruncate;
  const auto selection = select_samples(*dataset, options);
  EXPECT_THAT(selection->samples, ElementsAre(1, 3));  // The long row's supervision was cut off.
  EXPECT_EQ(selection->unsupervised_dropped, 2);
  options.unsupervised = Unsupervised::kKeep;
  const auto all = select_samples(*dataset, options);
  EXPECT_EQ(all->samples.size(), 4u);
  const EpochPlan plan = EpochPlan::make(*all, options, 0);
  for (int64_t m = 0; m < plan.micro_batches(); ++m) {
    const MicroBatch batch = make_micro_batch(*dataset, plan, m);
    EXPECT_LE(batch.tokens(), 4);
    if (batch.sample_ids[0] == 0) {
      EXPECT_THAT(batch.token_ids, ElementsAre(1, 2, 3, 4));
    }
  }
}

TEST_F(MakeMicroBatch, TooLongSampleIsNamedByShardAndRow) {
  const auto dataset = open_dataset(files_, {"t.safetensors"});
  PlanOptions options;
  options.token_budget = 4;
  EXPECT_THAT(select_samples(*dataset, options).status().message(),
              HasSubstr("t.safetensors row 0 (long) with 6 tokens"));
}

TEST_F(MakeMicroBatch, ChecksumSeesEveryPart) {
  const auto dataset = open_dataset(files_, {"t.safetensors"});
  PlanOptions options;
  const auto selection = select_samples(*dataset, options);
  const EpochPlan plan = EpochPlan::make(*selection, options, 0);
  const MicroBatch batch = make_micro_batch(*dataset, plan, 0);
  const uint32_t crc = micro_batch_crc32c(batch);
  EXPECT_EQ(micro_batch_crc32c(make_micro_batch(*dataset, plan, 0)), crc);
  MicroBatch other = batch;
  other.token_ids[3] ^= 1;
  EXPECT_NE(micro_batch_crc32c(other), crc);
  other = batch;
  other.loss_mask[3] ^= 1;
  EXPECT_NE(micro_batch_crc32c(other), crc);
  other = batch;
  ++other.offsets[1];
  EXPECT_NE(micro_batch_crc32c(other), crc);
  other = batch;
  other.id.epoch = 1;
  EXPECT_NE(micro_batch_crc32c(other), crc);
}

TEST_F(MakeMicroBatch, SelectDocumentsKeepsWholeDocuments) {
  const auto dataset = open_dataset(files_, {"t.safetensors"});
  PlanOptions options;
  const auto selection = select_samples(*dataset, options);
  const MicroBatch batch = make_micro_batch(*dataset, EpochPlan::make(*selection, options, 0), 0);
  const int32_t ends[] = {0, 2};
  const MicroBatch part = select_documents(batch, ends);
  EXPECT_EQ(part.documents(), 2);
  EXPECT_EQ(part.sample_ids[1], batch.sample_ids[2]);
  const int32_t all[] = {0, 1, 2};
  EXPECT_EQ(micro_batch_crc32c(select_documents(batch, all)), micro_batch_crc32c(batch));
}

}  // namespace
}  // namespace percheron
