#include "model/dflash_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "tests/model/training_case.h"
#include "tests/test_seed.h"

namespace percheron {
namespace {

using testing::ElementsAre;
using testing::FloatNear;

Features counting_features(int64_t length, int64_t answer) {
  TrainingDocument document;
  for (int64_t id = 0; id < length; ++id) {
    document.token_ids.push_back(static_cast<uint32_t>(id));
    document.loss_mask.push_back(id >= answer ? 1 : 0);
  }
  return random_features(1, {document}, 1, 2);
}

LossConfig hard_loss() {
  LossConfig loss;
  loss.hard_labels = true;
  loss.gamma = 3;
  return loss;
}

DrafterConfig blocks_of(int64_t size) {
  DrafterConfig config = small_dflash_config();
  config.block_size = size;
  return config;
}

DflashBlocks plan(const Features& features, int64_t size, const LossConfig& loss,
                  std::vector<DflashAnchor> anchors) {
  return plan_dflash_blocks(features, blocks_of(size), loss, std::move(anchors), {}).value();
}

// SpecForge#471, #472, #473, speculators#760: slots predict their own position, without EAGLE-3's
// shift; slot 0 is the anchor, so a block of 4 drafts 3 tokens.
TEST(DflashBlocks, SlotPredictsTheTokenAtItsOwnPosition) {
  const DflashBlocks blocks = plan(counting_features(10, 2), 4, hard_loss(), {{5, 0}});
  EXPECT_THAT(blocks.input_ids, ElementsAre(5, 22, 22, 22));
  EXPECT_THAT(blocks.block_positions, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(blocks.rows, ElementsAre(1, 2, 3));
  EXPECT_THAT(blocks.labels, ElementsAre(6, 7, 8));
  EXPECT_THAT(blocks.teacher_rows, ElementsAre(5, 6, 7));
}

// speculators#798: the table of weights; slot 0 has none, slot 1 has 1.
TEST(DflashBlocks, WeightsDecayFromTheFirstDraft) {
  const DflashBlocks blocks = plan(counting_features(10, 2), 4, hard_loss(), {{5, 0}});
  EXPECT_THAT(blocks.weights, ElementsAre(1.0f, FloatNear(std::exp(-1 / 3.0f), 1e-6f),
                                          FloatNear(std::exp(-2 / 3.0f), 1e-6f)));
}

// speculators#1061: two documents of 10, a block of 8 whose anchor is the eighth token.
TEST(DflashBlocks, LabelsStopAtTheEndOfTheDocument) {
  const TrainingDocument document = random_document(1, 10, 0, 23);
  const Features features = random_features(1, {document, document}, 1, 2);
  const DflashBlocks cut = plan(features, 8, hard_loss(), {{7, 0}});
  EXPECT_THAT(cut.rows, ElementsAre(1, 2));
  EXPECT_EQ(cut.input_ids.size(), 8u) << "the block keeps its slots, as when drafting";
  LossConfig crossing = hard_loss();
  crossing.cross_documents = true;
  EXPECT_EQ(plan(features, 8, crossing, {{7, 0}}).rows.size(), 7u);
}

// SpecForge#470: with anchors at 0 and 3 and blocks of 8 the second block sees rows 0..2 of the
// context, whatever block they also belong to, and no row of the first block.
TEST(DflashBlocks, ContextIsWhatLiesBeforeTheOwnAnchor) {
  const DflashBlocks blocks = plan(counting_features(12, 0), 8, hard_loss(), {{0, 0}, {3, 0}});
  const std::vector<int32_t> intervals = dflash_intervals(blocks, blocks_of(8), 0);
  for (size_t row = 0; row < 8; ++row) {
    const auto first = intervals.begin() + static_cast<int64_t>(row * 4);
    EXPECT_THAT(std::vector<int32_t>(first, first + 4), ElementsAre(0, 0, 12, 20));
    const auto second = intervals.begin() + static_cast<int64_t>((row + 8) * 4);
    EXPECT_THAT(std::vector<int32_t>(second, second + 4), ElementsAre(0, 3, 20, 28));
  }
}

TEST(DflashBlocks, SlidingWindowRulesDifferInTheirLowerBound) {
  const DflashBlocks blocks = plan(counting_features(12, 0), 3, hard_loss(), {{8, 0}});
  DrafterConfig config = blocks_of(3);
  EXPECT_THAT(dflash_intervals(blocks, config, 4),
              ElementsAre(5, 8, 12, 13, 6, 8, 12, 14, 7, 8, 12, 15));
  config.window_rule = WindowRule::kPerAnchor;
  config.causal_in_sliding_layers = false;
  EXPECT_THAT(dflash_intervals(blocks, config, 4),
              ElementsAre(4, 8, 12, 15, 4, 8, 12, 15, 4, 8, 12, 15));
}

TEST(DrawAnchors, ArePairsOfSupervisedTokensOfOneDocumentAscendingAndDistinct) {
  const std::vector<TrainingDocument> documents = {
      random_document(1, 7, 3, 23), random_document(2, 1, 0, 23), random_document(3, 9, 9, 23)};
  MicroBatch batch = random_features(1, documents, 1, 2).batch;
  LossConfig loss = hard_loss();
  EXPECT_THAT(draw_anchors(batch, loss),
              ElementsAre(DflashAnchor{3, 0}, DflashAnchor{4, 0}, DflashAnchor{5, 0}));
  loss.anchors_max = 2;
  EXPECT_EQ(draw_anchors(batch, loss).size(), 2u);
  loss.supervised_per_anchor = 3;  // 4 supervised tokens: 2 anchors
  loss.anchors_max = 512;
  EXPECT_EQ(draw_anchors(batch, loss).size(), 2u);
}

// SpecForge#501, #511: no anchor outside its document for any length.
TEST(DrawAnchors, StayInsideForEveryLength) {
  LossConfig loss = hard_loss();
  for (int64_t length = 1; length <= 300; ++length) {
    const MicroBatch batch = random_features(1, {random_document(5, length, 0, 23)}, 1, 1).batch;
    for (const DflashAnchor& anchor : draw_anchors(batch, loss)) {
      ASSERT_GE(anchor.row, 0);
      ASSERT_LT(anchor.row + 1, length);
    }
  }
}

// SpecForge#501, #470 and speculators#1061 in packs of any lengths, around 128 and down to 1.
TEST(DflashBlocks, NothingOfARandomPackLeavesItsDocument) {
  const TestSeed seed(1061);
  Random random(seed.value());
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<TrainingDocument> documents;
    for (uint64_t d = 0; d < 2 + random.below(4); ++d) {
      const int64_t lengths[] = {1, 2, 127, 128, 129, 1 + static_cast<int64_t>(random.below(40))};
      const int64_t length = lengths[random.below(6)];
      const auto answer = static_cast<int64_t>(random.below(static_cast<uint64_t>(length) + 1));
      documents.push_back(random_document(random.next(), length, answer, 23));
    }
    const Features features = random_features(1, documents, 1, 2);
    const MicroBatch& batch = features.batch;
    const auto size = 1 + static_cast<int64_t>(random.below(16));
    const DflashBlocks blocks = plan(features, size, hard_loss(), draw_anchors(batch, hard_loss()));
    const std::vector<int32_t> intervals = dflash_intervals(blocks, blocks_of(size), 0);
    for (size_t r = 0; r < blocks.rows.size(); ++r) {
      const auto block = static_cast<size_t>(blocks.rows[r] / size);
      const DflashAnchor& anchor = blocks.anchors[block];
      const int32_t begin = batch.offsets[static_cast<size_t>(anchor.document)];
      const int32_t end = batch.offsets[static_cast<size_t>(anchor.document) + 1];
      const auto at = anchor.row + static_cast<int32_t>(blocks.rows[r] % size);
      ASSERT_TRUE(begin <= anchor.row && anchor.row < at && at < end) << "trial " << trial;
      EXPECT_EQ(blocks.labels[r], static_cast<int32_t>(batch.token_ids[static_cast<size_t>(at)]));
      EXPECT_EQ(blocks.teacher_rows[r], at - 1);
      const auto key = intervals.begin() + int64_t{blocks.rows[r]} * 4;
      EXPECT_EQ(std::vector<int32_t>(key, key + 2), (std::vector<int32_t>{begin, anchor.row}));
    }
  }
}

TEST(DrawAnchors, DependOnSeedEpochAndSampleAlone) {
  const TrainingDocument a = random_document(1, 90, 10, 23), b = random_document(2, 40, 10, 23);
  LossConfig loss = hard_loss();
  loss.anchors_max = 8;
  MicroBatch alone = random_features(1, {a}, 1, 2, 4).batch;
  MicroBatch packed = random_features(1, {b, a}, 1, 2, 3).batch;
  const std::vector<DflashAnchor> first = draw_anchors(alone, loss);
  std::vector<DflashAnchor> second = draw_anchors(packed, loss);
  second.erase(second.begin(), second.begin() + 8);
  for (DflashAnchor& anchor : second) anchor = {anchor.row - 40, 0};
  EXPECT_EQ(first, second);
  alone.id.epoch = 1;
  EXPECT_NE(draw_anchors(alone, loss), first);
  alone.id.epoch = packed.id.epoch;
  EXPECT_EQ(draw_anchors(alone, loss), first);
  loss.seed = 9;
  EXPECT_NE(draw_anchors(alone, loss), first);
}

TEST(DpaceWeights, SumTheProductsOfConfidenceThatALaterSlotNeeds) {
  LossConfig loss = hard_loss();
  loss.position_weight = PositionWeight::kDpace;
  loss.denominator = Denominator::kWeights;
  DflashBlocks blocks = plan(counting_features(10, 2), 4, loss, {{5, 0}});
  const std::vector<float> losses = {0.0f, std::log(2.0f), std::log(4.0f)};
  const double c1 = 1.0, c2 = c1 * 0.75, c3 = c2 * 0.625;
  EXPECT_THAT(
      dpace_weights(losses, loss, blocks),
      ElementsAre(FloatNear(c1 + c2 + c3, 1e-6), FloatNear(c2 + c3, 1e-6), FloatNear(c3, 1e-6)));
  EXPECT_NEAR(blocks.weight, c1 + 2 * c2 + 3 * c3, 1e-6);
}

// Labels outside the draft vocabulary carry no loss but stay in the denominator and count as wrong.
TEST(DflashBlocks, LabelOutsideTheDraftVocabularyCarriesNoLoss) {
  const Features features = counting_features(10, 2);
  std::vector<int32_t> to_draft(23, -1);
  to_draft[6] = 0;
  to_draft[8] = 1;
  LossConfig loss = hard_loss();
  loss.denominator = Denominator::kValid;
  DflashBlocks blocks =
      plan_dflash_blocks(features, blocks_of(4), loss, {{5, 0}}, to_draft).value();
  EXPECT_THAT(blocks.labels, ElementsAre(0, 1));
  EXPECT_EQ(blocks.weight, 3);
  DflashOutcome outcome{{1.0f, 1.0f}, {0, 1}, {}};
  const std::vector<int32_t> draft_ids = {6, 8};
  const StepSums sums = sum_up_dflash(blocks, outcome, draft_ids);
  EXPECT_THAT(sums.position_count, ElementsAre(1, 1, 1));
  EXPECT_THAT(sums.position_correct, ElementsAre(1, 0, 1));
  EXPECT_EQ(sums.run_sum, 1);
}

}  // namespace
}  // namespace percheron
