#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/features.h"
#include "model/drafter.h"

namespace percheron {

/// Which rows of a micro-batch EAGLE-3 trains in its L steps of training-time
/// test, and on what: all alignment in one place. Row i of step k embeds token
/// i + k + 1, continues hidden state i, and is compared with the target's
/// prediction at teacher row t = i + k + 1, that is with token i
/// + k + 2. Source: docs/training.md, "EAGLE-3: training-time test"; the mask
/// moves with the label (SpecForge#885).
struct Eagle3Rows {
  int64_t tokens = 0;  // T, rows of the micro-batch
  int64_t steps = 0;   // L

  // Of every row: it gives keys and values to later rows of its document.
  std::vector<int32_t> first_ids;        // [T] embedded token of step 0; 0 beyond the document
  std::vector<int32_t> first_positions;  // [T] rotary: its place in the document

  // Of every row that some loss depends on; A of them. The others end with
  // their keys.
  std::vector<int32_t> queries;    // [A] i, ascending
  std::vector<int32_t> input_ids;  // [L, A] embedded token
  std::vector<int32_t> positions;  // [L, A] the row's place in its document, plus k
  std::vector<int32_t> intervals;  // [L, A, 4] keys seen: causal of step 0, own of steps 1..k

  // Of every teacher row that some step learns from; R of them.
  std::vector<int32_t> teacher_rows;  // [R] t, or -1 for a row of zero logits
                                      // (RightEdge::kZeroTeacher)
  std::vector<int32_t> truth;         // [R] the target's top-1 id there, -1 if unknown
  std::vector<int32_t> query_rows;    // [L, R] i, or -1 where step k has no row for this teacher
  std::vector<float> weights;         // [L, R] factor of the row's loss; 0 where query_rows is -1
  std::vector<double> trained;        // [L] rows with a loss

  // For metrics. status[t]: index into teacher_rows, or one of these.
  static constexpr int32_t kUnsupervised = -1;
  static constexpr int32_t kOutsideDraftVocab =
      -2;                       // supervised, but the drafter can't say the target's token
  std::vector<int32_t> status;  // [T]
  std::vector<int32_t> begin;   // [T] first row that may reach teacher row t
  int64_t row_shift = 1;        // row i of step k reaches teacher row i + k + row_shift

  double weight = 0;  // the micro-batch's share of the denominator
  int64_t supervised = 0;
};

/// Adds rows that learn nothing: T becomes `tokens` on the device, A and R both `learning`. The
/// metrics' fields stay. `rows` was laid out by plan_eagle3_rows().
void pad_eagle3_rows(Eagle3Rows& rows, int64_t tokens, int64_t learning);

/// What the loss stage found for each row of the plan, on the host; all empty
/// when it has no rows.
struct Eagle3Outcome {
  std::vector<float> loss;              // [L, R], not weighted
  std::vector<int32_t> argmax;          // [L, R] draft row of the drafter's greedy token
  std::vector<int32_t> teacher_argmax;  // [R] draft row of the teacher's
};

/// Losses and metrics of a micro-batch. A draft is right if its target id is
/// the target's top-1 (the teacher's choice within the draft vocabulary where
/// the top-1 is unknown). Rows the gate closed count as wrong drafts. The run
/// of a row ends at the first wrong or unsupervised step; rows without a
/// supervised step are not counted. `draft_ids`: empty for the whole
/// vocabulary.
StepSums sum_up_eagle3(const Eagle3Rows& rows, const Eagle3Outcome& outcome,
                       std::span<const int32_t> draft_ids);

/// Lays the rows out. `to_draft`: [V] draft row of each target id or -1; empty
/// for the whole vocabulary. Under Denominator::kValid each step has its own
/// divisor N_k; the sums are scaled by N_0 / N_k so that one division by N_0 is
/// exact for one micro-batch (for several it is the N_0-weighted mean).
/// kInvalidArgument when the gate is on and the features lack top-1 ids.
Result<Eagle3Rows> plan_eagle3_rows(const Features& features, const LossConfig& loss,
                                    std::span<const int32_t> to_draft);

}  // namespace percheron
