#include "model/eagle3_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "tests/model/training_case.h"

namespace percheron {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

// A prompt of 5 ids and an answer of 3 and its end token: ids 0..8,
// supervised 5..8.
Features counting_features() {
  TrainingDocument document;
  for (uint32_t id = 0; id < 9; ++id) {
    document.token_ids.push_back(id);
    document.loss_mask.push_back(id >= 5 ? 1 : 0);
  }
  return random_features(1, {document}, 1, 2);
}

LossConfig exact_loss(int64_t steps) {
  LossConfig loss;
  loss.ttt_steps = steps;
  loss.gate_on_draft_vocab = false;
  return loss;
}

using Entry = std::tuple<int64_t, int32_t, int32_t>;  // row, embedded id, predicted id

// What step k trains: the predicted token is the one after the teacher's row.
std::vector<Entry> table(const Eagle3Rows& rows, const Features& features, int64_t k) {
  std::vector<Entry> entries;
  const size_t count = rows.teacher_rows.size(), queries = rows.queries.size();
  for (size_t r = 0; r < count; ++r) {
    const int32_t query = rows.query_rows[static_cast<size_t>(k) * count + r];
    if (query < 0) continue;
    const size_t at = static_cast<size_t>(k) * queries + static_cast<size_t>(query);
    const auto teacher = static_cast<size_t>(rows.teacher_rows[r]);
    entries.emplace_back(rows.queries[static_cast<size_t>(query)], rows.input_ids[at],
                         static_cast<int32_t>(features.batch.token_ids[teacher + 1]));
  }
  return entries;
}

// The rows i of step k, in the order of the teacher rows.
std::vector<int32_t> rows_of_step(const Eagle3Rows& rows, size_t k) {
  std::vector<int32_t> result;
  const size_t count = rows.teacher_rows.size();
  for (size_t r = 0; r < count; ++r) {
    const int32_t query = rows.query_rows[k * count + r];
    result.push_back(query < 0 ? -1 : rows.queries[static_cast<size_t>(query)]);
  }
  return result;
}

// SpecForge#885, #895, EAGLE#317, #325, #341: the mask moves with the label, so the row just
// before the answer learns and no row past its end does.
TEST(Eagle3Rows, RowEmbedsTheNextTokenAndPredictsTheOneAfterIt) {
  const Features features = counting_features();
  const Eagle3Rows rows = plan_eagle3_rows(features, exact_loss(3), {}).value();
  EXPECT_THAT(table(rows, features, 0),
              ElementsAre(Entry{3, 4, 5}, Entry{4, 5, 6}, Entry{5, 6, 7}, Entry{6, 7, 8}));
  EXPECT_THAT(table(rows, features, 1),
              ElementsAre(Entry{2, 4, 5}, Entry{3, 5, 6}, Entry{4, 6, 7}, Entry{5, 7, 8}));
  EXPECT_THAT(table(rows, features, 2),
              ElementsAre(Entry{1, 4, 5}, Entry{2, 5, 6}, Entry{3, 6, 7}, Entry{4, 7, 8}));
  EXPECT_EQ(rows.weight, 4);
}

TEST(Eagle3Rows, MaskShiftOneWeighsThePredictionByTheTokenBeforeIt) {
  const Features features = counting_features();
  LossConfig loss = exact_loss(1);
  loss.mask_shift = 1;
  const Eagle3Rows rows = plan_eagle3_rows(features, loss, {}).value();
  EXPECT_THAT(rows.teacher_rows, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(rows_of_step(rows, 0), ElementsAre(4, 5, 6, 7));
}

TEST(Eagle3Rows, MaskShiftZeroEndsWithARowOfZeroTeacherOnlyWhereAsked) {
  const Features features = counting_features();
  LossConfig loss = exact_loss(2);
  loss.mask_shift = 0;
  EXPECT_THAT(plan_eagle3_rows(features, loss, {}).value().teacher_rows, ElementsAre(6, 7, 8));
  loss.right_edge = RightEdge::kZeroTeacher;
  const Eagle3Rows rows = plan_eagle3_rows(features, loss, {}).value();
  EXPECT_THAT(rows.teacher_rows, ElementsAre(6, 7, 8, -1));
  EXPECT_THAT(rows_of_step(rows, 0), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(rows_of_step(rows, 1), ElementsAre(4, 5, 6, 7));
}

// A document that its plan has lengthened ends where its own rows do.
TEST(Eagle3Rows, PaddingGivesNothingWhateverTheMaskShift) {
  const Features features = counting_features();
  Features padded = features;
  for (int i = 0; i < 3; ++i) {
    padded.batch.token_ids.push_back(padded.batch.token_ids.back());
    padded.batch.loss_mask.push_back(0);
  }
  padded.batch.offsets.back() += 3;
  padded.batch.padding = {3};
  for (const int64_t mask_shift : {0, 1, 2}) {
    for (const RightEdge edge : {RightEdge::kDrop, RightEdge::kZeroTeacher}) {
      LossConfig loss = exact_loss(3);
      loss.mask_shift = mask_shift;
      loss.right_edge = edge;
      const Eagle3Rows own = plan_eagle3_rows(features, loss, {}).value();
      const Eagle3Rows rows = plan_eagle3_rows(padded, loss, {}).value();
      EXPECT_EQ(rows.tokens, own.tokens + 3);
      EXPECT_EQ(rows.teacher_rows, own.teacher_rows) << mask_shift;
      EXPECT_EQ(rows.queries, own.queries) << mask_shift;
      EXPECT_EQ(rows.query_rows, own.query_rows) << mask_shift;
      EXPECT_EQ(rows.input_ids, own.input_ids) << mask_shift;
      EXPECT_EQ(rows.weights, own.weights) << mask_shift;
      EXPECT_EQ(rows.weight, own.weight) << mask_shift;
    }
  }
}

// speculators#1061 for EAGLE-3: neither tokens nor teachers nor keys come from
// the next packed document.
TEST(Eagle3Rows, PackedDocumentsGiveTheTablesThatTheyGiveAlone) {
  const TrainingDocument a = random_document(1, 6, 2, 23), b = random_document(2, 5, 0, 23);
  const LossConfig loss = exact_loss(3);
  const Eagle3Rows packed = plan_eagle3_rows(random_features(1, {a, b}, 1, 2), loss, {}).value();
  std::vector<int32_t> teachers, ids, first_ids, queries;
  for (int64_t k = 0; k < 3; ++k) {
    int32_t first = 0;
    for (const TrainingDocument& document : {a, b}) {
      const Eagle3Rows alone =
          plan_eagle3_rows(random_features(1, {document}, 1, 2), loss, {}).value();
      const auto count = static_cast<int64_t>(alone.queries.size());
      ids.insert(ids.end(), alone.input_ids.begin() + k * count,
                 alone.input_ids.begin() + (k + 1) * count);
      if (k == 0) {
        first_ids.insert(first_ids.end(), alone.first_ids.begin(), alone.first_ids.end());
        for (const int32_t t : alone.teacher_rows) teachers.push_back(t + first);
        for (const int32_t i : alone.queries) queries.push_back(i + first);
      }
      first += static_cast<int32_t>(alone.tokens);
    }
  }
  EXPECT_THAT(packed.input_ids, ElementsAreArray(ids));
  EXPECT_THAT(packed.first_ids, ElementsAreArray(first_ids));
  EXPECT_THAT(packed.queries, ElementsAreArray(queries));
  EXPECT_THAT(packed.teacher_rows, ElementsAreArray(teachers));
  EXPECT_EQ(packed.weight, 4 + 5);
  for (size_t query = 0; query < packed.queries.size(); ++query) {
    EXPECT_EQ(packed.intervals[query * 4], packed.queries[query] < 6 ? 0 : 6);
  }
}

// TorchSpec#186: a row whose target says a token outside the draft vocabulary
// carries no loss.
TEST(Eagle3Rows, TopOneOutsideTheDraftVocabularyClosesTheRow) {
  Features features = counting_features();
  features.top1 = {-1, -1, -1, -1, 1, 4, 2, 7, -1};
  const std::vector<int32_t> to_draft = {-1, 0, -1, -1, 1, -1, -1, 2, -1};
  LossConfig loss = exact_loss(1);
  loss.gate_on_draft_vocab = true;
  const Eagle3Rows rows = plan_eagle3_rows(features, loss, to_draft).value();
  EXPECT_THAT(rows.teacher_rows, ElementsAre(4, 5, 7));
  EXPECT_EQ(rows.status[6], Eagle3Rows::kOutsideDraftVocab);
  EXPECT_THAT(rows.truth, ElementsAre(1, 4, 7));
}

TEST(Eagle3Rows, GateWithoutTopOneIsRefused) {
  const std::vector<int32_t> to_draft(9, 0);
  LossConfig loss = exact_loss(1);
  loss.gate_on_draft_vocab = true;
  const Result<Eagle3Rows> rows = plan_eagle3_rows(counting_features(), loss, to_draft);
  ASSERT_FALSE(rows.ok());
  EXPECT_THAT(rows.status().message(), testing::HasSubstr("gate_on_draft_vocab"));
}

TEST(Eagle3Rows, DocumentTooShortForAStepHasNoRowsInIt) {
  TrainingDocument document = random_document(3, 3, 0, 23);
  const Features features = random_features(1, {document}, 1, 2);
  const Eagle3Rows rows = plan_eagle3_rows(features, exact_loss(5), {}).value();
  EXPECT_THAT(rows.trained, ElementsAre(1, 0, 0, 0, 0));
  EXPECT_THAT(rows.teacher_rows, ElementsAre(1));
}

// The row's keys of steps 1..k lie side by side: one interval. Rows 1..6 have a
// loss.
TEST(Eagle3Rows, IntervalsAreTheDocumentUpToTheRowAndItsOwnLaterSteps) {
  const Eagle3Rows rows = plan_eagle3_rows(counting_features(), exact_loss(3), {}).value();
  EXPECT_THAT(rows.queries, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(rows.first_ids, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 0));
  EXPECT_THAT(rows.first_positions, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  const auto interval = [&](int64_t k, int64_t query) {
    const auto begin = rows.intervals.begin() + (k * 6 + query) * 4;
    return std::vector<int32_t>(begin, begin + 4);
  };
  EXPECT_THAT(interval(0, 3), ElementsAre(0, 5, 15, 15));  // row 4: 9 + 3 * 2
  EXPECT_THAT(interval(2, 3), ElementsAre(0, 5, 15, 17));
  EXPECT_EQ(rows.positions[2 * 6 + 3], 6);
}

// Golden `mean_run_plus_one`: a wrong or unsupervised step ends the run
// (speculators#759: never above the number of steps).
TEST(Eagle3Sums, RunsEndAtTheFirstWrongStep) {
  const Features features = counting_features();
  const Eagle3Rows rows = plan_eagle3_rows(features, exact_loss(2), {}).value();
  Eagle3Outcome outcome;
  outcome.loss.assign(8, 0.5f);
  outcome.teacher_argmax = {5, 6, 7, 8};
  outcome.argmax = {5, 6, 0, 8, 5, 6, 7, 0};
  const StepSums sums = sum_up_eagle3(rows, outcome, {});
  EXPECT_THAT(sums.position_correct, ElementsAre(3, 3));
  EXPECT_THAT(sums.position_count, ElementsAre(4, 4));
  EXPECT_NEAR(sums.loss, 0.5 * 4 + 0.8 * 0.5 * 4, 1e-6);
  // Rows 2..6: unsupervised first step; 5 then 6; 6 then 7; wrong; 8 and no
  // second step.
  EXPECT_EQ(sums.run_count, 5);
  EXPECT_EQ(sums.run_sum, 0 + 2 + 2 + 0 + 1);
  EXPECT_NEAR(sums.simulated_acceptance_length(), 2.0, 1e-12);
}

}  // namespace
}  // namespace percheron
