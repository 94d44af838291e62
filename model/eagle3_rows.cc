#include "model/eagle3_rows.h"

#include <algorithm>
#include <cmath>

#include "model/drafter_inputs.h"

namespace percheron {
namespace {

/// The token that row i of step k embeds; `end` of the row's document, before its padding.
int32_t embedded_token(const MicroBatch& batch, const LossConfig& loss, int64_t i, int64_t k,
                       int64_t end) {
  const int64_t token = i + k + loss.row_shift;
  const int64_t readable = loss.cross_documents ? batch.tokens() : end;
  return token < readable ? static_cast<int32_t>(batch.token_ids[token]) : 0;
}

/// What every row needs to give its keys, and what the queries need in all
/// steps.
void lay_out_inputs(const MicroBatch& batch, const LossConfig& loss, Eagle3Rows& rows) {
  const int64_t tokens = rows.tokens, steps = rows.steps;
  const int64_t count = static_cast<int64_t>(rows.queries.size());
  rows.input_ids.resize(static_cast<size_t>(steps * count));
  rows.positions.resize(static_cast<size_t>(steps * count));
  rows.intervals.resize(static_cast<size_t>(steps * count * 4));
  int64_t query = 0;
  for (int64_t d = 0; d < batch.documents(); ++d) {
    const int64_t begin = batch.offsets[d], end = batch.own_end(d);
    for (int64_t i = begin; i < batch.offsets[d + 1]; ++i) {
      rows.first_ids.push_back(embedded_token(batch, loss, i, 0, end));
      rows.first_positions.push_back(static_cast<int32_t>(i - begin));
      if (query == count || rows.queries[query] != i) continue;
      const int64_t own = tokens + query * (steps - 1);
      for (int64_t k = 0; k < steps; ++k) {
        const int64_t at = k * count + query;
        rows.input_ids[at] = embedded_token(batch, loss, i, k, end);
        rows.positions[at] = static_cast<int32_t>(i - begin + k);
        int32_t* interval = &rows.intervals[at * 4];
        interval[0] = static_cast<int32_t>(begin);
        interval[1] = static_cast<int32_t>(i + 1);
        interval[2] = static_cast<int32_t>(own);
        interval[3] = static_cast<int32_t>(own + k);
      }
      ++query;
    }
  }
}

/// Adds teacher row t, reached from rows begin.. of its document, unless the
/// gate closes it.
class TeacherRows {
 public:
  TeacherRows(const Features& features, const LossConfig& loss, std::span<const int32_t> to_draft,
              Eagle3Rows& rows)
      : features_(features), loss_(loss), to_draft_(to_draft), rows_(rows) {}

  void add(int64_t t, int64_t begin) {
    const int32_t top1 = features_.top1.empty() ? -1 : features_.top1[t];
    if (loss_.gate_on_draft_vocab && !to_draft_.empty()) {
      if (top1 < 0) return;
      if (to_draft_[top1] < 0) {
        rows_.status[t] = Eagle3Rows::kOutsideDraftVocab;
        return;
      }
    }
    rows_.status[t] = static_cast<int32_t>(rows_.teacher_rows.size());
    push(t, t, begin, top1);
  }
  /// The row of zero logits just after a document; its largest logit is id 0's.
  void add_zero(int64_t end, int64_t begin) {
    const bool closed = loss_.gate_on_draft_vocab && !to_draft_.empty() && to_draft_[0] < 0;
    if (!closed) push(-1, end, begin, -1);
  }
  std::span<const int64_t> reached() const { return reached_; }
  std::span<const int64_t> begins() const { return begins_; }

 private:
  void push(int64_t teacher, int64_t reached, int64_t begin, int32_t truth) {
    rows_.teacher_rows.push_back(static_cast<int32_t>(teacher));
    rows_.truth.push_back(truth);
    reached_.push_back(reached);
    begins_.push_back(begin);
  }

  const Features& features_;
  const LossConfig& loss_;
  std::span<const int32_t> to_draft_;
  Eagle3Rows& rows_;
  std::vector<int64_t> reached_,
      begins_;  // [R] t also where the teacher is zero; first row that may reach
                // it
};

void weigh(const TeacherRows& teacher, const LossConfig& loss, Eagle3Rows& rows) {
  const int64_t count = static_cast<int64_t>(rows.teacher_rows.size());
  rows.query_rows.assign(static_cast<size_t>(rows.steps * count), -1);
  rows.weights.assign(static_cast<size_t>(rows.steps * count), 0.0f);
  rows.trained.assign(static_cast<size_t>(rows.steps), 0.0);
  for (int64_t k = 0; k < rows.steps; ++k) {
    for (int64_t r = 0; r < count; ++r) {
      const int64_t i = teacher.reached()[r] - k - loss.row_shift;
      if (i < teacher.begins()[r]) continue;
      rows.query_rows[k * count + r] = static_cast<int32_t>(i);
      rows.trained[k] += 1;
    }
    double factor = std::pow(loss.step_decay, static_cast<double>(k));
    if (loss.denominator == Denominator::kValid && rows.trained[k] > 0) {
      factor *= (rows.trained[0] + loss.denominator_epsilon) /
                (rows.trained[k] + loss.denominator_epsilon);
    }
    for (int64_t r = 0; r < count; ++r) {
      if (rows.query_rows[k * count + r] >= 0) {
        rows.weights[k * count + r] = static_cast<float>(factor);
      }
    }
  }
}

/// Collects the rows with a loss in any step and makes query_rows indices of
/// them.
void number_queries(Eagle3Rows& rows) {
  std::vector<int32_t> number(static_cast<size_t>(rows.tokens), -1);
  for (const int32_t i : rows.query_rows) {
    if (i >= 0) number[i] = 0;
  }
  for (int32_t i = 0; i < rows.tokens; ++i) {
    if (number[i] < 0) continue;
    number[i] = static_cast<int32_t>(rows.queries.size());
    rows.queries.push_back(i);
  }
  for (int32_t& i : rows.query_rows) {
    if (i >= 0) i = number[i];
  }
}

double denominator_of(const MicroBatch& batch, const LossConfig& loss, const Eagle3Rows& rows) {
  switch (loss.denominator) {
    case Denominator::kSupervised: return static_cast<double>(rows.supervised);
    case Denominator::kValid: return rows.trained.empty() ? 0.0 : rows.trained[0];
    case Denominator::kAll: return static_cast<double>(rows.tokens);
    case Denominator::kDocuments: return static_cast<double>(batch.documents());
    case Denominator::kWeights: break;
  }
  double sum = 0;
  for (float weight : rows.weights) sum += weight;
  return sum;
}

}  // namespace

Result<Eagle3Rows> plan_eagle3_rows(const Features& features, const LossConfig& loss,
                                    std::span<const int32_t> to_draft) {
  const MicroBatch& batch = features.batch;
  if (loss.gate_on_draft_vocab && !to_draft.empty() && features.top1.empty()) {
    return invalid_argument(
        "loss.gate_on_draft_vocab needs the target's top-1 ids, which these "
        "features lack; capture "
        "them with top-1 or set loss.gate_on_draft_vocab: false");
  }
  Eagle3Rows rows;
  rows.tokens = batch.tokens();
  rows.steps = loss.ttt_steps;
  rows.row_shift = loss.row_shift;
  rows.status.assign(static_cast<size_t>(rows.tokens), Eagle3Rows::kUnsupervised);
  rows.begin.assign(static_cast<size_t>(rows.tokens), 0);
  TeacherRows teacher(features, loss, to_draft, rows);
  for (int64_t d = 0; d < batch.documents(); ++d) {
    const int64_t begin = batch.offsets[d], end = batch.own_end(d);
    const int64_t first = loss.cross_documents ? 0 : begin;
    const int64_t readable = loss.cross_documents ? rows.tokens : end;
    const auto supervised = [&](int64_t t) {
      const int64_t at = t - loss.row_shift + loss.mask_shift;
      return at >= first && at < readable && batch.loss_mask[at] == 1;
    };
    for (int64_t t = begin; t < end; ++t) {
      rows.supervised += batch.loss_mask[t];
      rows.begin[t] = static_cast<int32_t>(first);
      if (t - loss.row_shift >= first && supervised(t)) teacher.add(t, first);
    }
    if (loss.right_edge == RightEdge::kZeroTeacher && supervised(end)) teacher.add_zero(end, begin);
  }
  weigh(teacher, loss, rows);
  number_queries(rows);
  lay_out_inputs(batch, loss, rows);
  rows.weight = denominator_of(batch, loss, rows) + loss.denominator_epsilon;
  return rows;
}

void pad_eagle3_rows(Eagle3Rows& rows, int64_t tokens, int64_t learning) {
  const int64_t queries = std::ssize(rows.queries), teachers = std::ssize(rows.teacher_rows);
  PERCHERON_CHECK(tokens >= rows.tokens && learning >= std::max(queries, teachers),
                  "rows are only added");
  rows.first_ids.resize(static_cast<size_t>(tokens), 0);
  rows.first_positions.resize(static_cast<size_t>(tokens), 0);
  // Keys of later steps lie behind those of all rows.
  for (size_t at = 0; at < rows.intervals.size(); at += 4) {
    for (size_t bound : {at + 2, at + 3}) {
      rows.intervals[bound] += static_cast<int32_t>(tokens - rows.tokens);
    }
  }
  const auto ints = [](const std::vector<int32_t>& x) { return std::span<const int32_t>(x); };
  rows.queries.resize(static_cast<size_t>(learning), -1);
  rows.input_ids = widened(ints(rows.input_ids), queries, learning, 1, 0);
  rows.positions = widened(ints(rows.positions), queries, learning, 1, 0);
  rows.intervals = widened(ints(rows.intervals), queries, learning, 4, 0);
  rows.teacher_rows.resize(static_cast<size_t>(learning), -1);
  rows.truth.resize(static_cast<size_t>(learning), -1);
  rows.query_rows = widened(ints(rows.query_rows), teachers, learning, 1, -1);
  rows.weights = widened(std::span<const float>(rows.weights), teachers, learning, 1, 0.0f);
}

StepSums sum_up_eagle3(const Eagle3Rows& rows, const Eagle3Outcome& outcome,
                       std::span<const int32_t> draft_ids) {
  const int64_t count = static_cast<int64_t>(rows.teacher_rows.size());
  const size_t steps = static_cast<size_t>(rows.steps);
  StepSums sums;
  sums.weight = rows.weight;
  sums.tokens = rows.tokens;
  sums.supervised = rows.supervised;
  sums.position_loss.assign(steps, 0.0);
  sums.position_weight = rows.trained;
  sums.position_correct.assign(steps, 0.0);
  sums.position_count.assign(steps, 0.0);
  const auto id_of = [&](int32_t row) { return draft_ids.empty() ? row : draft_ids[row]; };
  for (int64_t at = 0; at < rows.steps * count; ++at) {
    if (rows.query_rows[at] < 0) continue;
    sums.loss += static_cast<double>(rows.weights[at]) * outcome.loss[at];
    sums.position_loss[at / count] += outcome.loss[at];
  }
  for (int64_t i = 0; i < rows.tokens; ++i) {
    int64_t run = 0;
    bool running = true, counted = false;
    for (int64_t k = 0; k < rows.steps; ++k) {
      const int64_t t = i + k + rows.row_shift;
      const int32_t status =
          t < rows.tokens && i >= rows.begin[t] ? rows.status[t] : Eagle3Rows::kUnsupervised;
      bool right = false;
      if (status != Eagle3Rows::kUnsupervised) {
        counted = true;
        sums.position_count[k] += 1;
        if (status >= 0) {
          const int32_t truth =
              rows.truth[status] >= 0 ? rows.truth[status] : id_of(outcome.teacher_argmax[status]);
          right = id_of(outcome.argmax[k * count + status]) == truth;
          sums.position_correct[k] += right ? 1 : 0;
        }
      }
      running = running && right;
      run += running ? 1 : 0;
    }
    sums.run_sum += static_cast<double>(run);
    sums.run_count += counted ? 1 : 0;
  }
  return sums;
}

}  // namespace percheron
