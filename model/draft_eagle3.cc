#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "model/draft_sources.h"
#include "model/parameter_list.h"

namespace percheron {
namespace {

/// Drafts one token after the other. Row i of its cache embeds token i + 1 and the target's state
/// of token i; rows of drafted tokens lie behind the verified ones and are overwritten.
class Eagle3Source final : public DraftSource {
 public:
  Eagle3Source(const Eagle3Drafter& drafter, Tensor keys, Tensor values, int64_t length_max)
      : drafter_(drafter),
        keys_(std::move(keys)),
        values_(std::move(values)),
        length_max_(length_max) {}

  void reset() override { used_ = 0; }

  Result<std::vector<int32_t>> draft(Context& context, ConstTensorView features,
                                     std::span<const int32_t> next, int64_t count) override {
    PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView states,
                               captured_columns(drafter_.config(), features));
    const int64_t fresh = states.dim(0);
    PERCHERON_CHECK(fresh > 0 && fresh == static_cast<int64_t>(next.size()),
                    "a token after each row");
    if (used_ + fresh > length_max_) {
      return resource_exhausted(fmt::format(
          "{} verified tokens exceed the draft source's limit of {}", used_ + fresh, length_max_));
    }
    // At least one, so that the verified rows leave their keys; drafts need room behind them.
    const int64_t wanted = count;
    count = std::clamp<int64_t>(count, 1, length_max_ - used_ - fresh + 1);
    std::vector<int32_t> drafted;
    const Arena::Scope scope(context.arena);
    const int64_t hidden_size = drafter_.config().body.hidden_size;
    TensorView hidden = context.arena.take(DType::kF32, {fresh, hidden_size});
    TensorView fed = context.arena.take(DType::kF32, {1, hidden_size});
    drafter_.fuse_states(context, states, hidden);
    PERCHERON_ASSIGN_OR_RETURN(int32_t token, step(context, used_, next, hidden, fed));
    drafted.push_back(token);
    hidden = hidden.rows(0, 1);
    for (int64_t j = 1; j < count; ++j) {
      std::swap(hidden, fed);
      PERCHERON_ASSIGN_OR_RETURN(
          token, step(context, used_ + fresh + j - 1, std::span(&drafted.back(), 1), hidden, fed));
      drafted.push_back(token);
    }
    used_ += fresh;
    if (wanted < 1) drafted.clear();
    return drafted;
  }

 private:
  // Runs rows begin .. begin + n and returns the token that the last of them drafts. fed: [1, H].
  Result<int32_t> step(Context& context, int64_t begin, std::span<const int32_t> tokens,
                       TensorView hidden, TensorView fed) {
    const Arena::Scope scope(context.arena);
    const int64_t count = hidden.dim(0), end = begin + count;
    std::vector<int32_t> positions(static_cast<size_t>(count));
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(begin));
    const std::vector<int32_t> last = {static_cast<int32_t>(count - 1)};
    const std::vector<int32_t> intervals = {0, static_cast<int32_t>(end), 0, 0};
    Eagle3Drafter::DraftRows rows;
    rows.input_ids = upload(context, tokens, {count});
    rows.positions = upload(context, positions, {count});
    if (count > 1) {
      rows.query_rows = upload(context, last, {1});
      rows.query_positions = rows.positions.rows(count - 1, count);
    }
    rows.intervals = upload(context, intervals, {1, 4});
    rows.hidden = hidden;
    rows.keys = keys_.view().rows(0, end);
    rows.values = values_.view().rows(0, end);
    rows.own_keys = keys_.view().rows(begin, end);
    rows.own_values = values_.view().rows(begin, end);
    drafter_.draft_step(context, rows, fed);
    const TensorView choice = context.arena.take(DType::kI32, {1});
    drafter_.choose(context, fed, choice);
    int32_t row = 0;
    context.device.copy_bytes(context.stream, &row, choice.data(), sizeof(row));
    PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
    return target_token(drafter_.draft_ids(), row);
  }

  const Eagle3Drafter& drafter_;
  Tensor keys_, values_;  // [length_max, kv heads * head_dim]
  int64_t length_max_;
  int64_t used_ = 0;
};

/// Every position of a micro-batch drafts at once: the first step runs all rows, the later ones
/// only those whose next token is supervised, each over the first step's keys and its own of later
/// steps.
class Eagle3Walk {
 public:
  Eagle3Walk(Context& context, const Eagle3Drafter& drafter, const Features& features,
             int64_t drafts)
      : context_(context), drafter_(drafter), features_(features), drafts_(drafts) {}

  Result<std::vector<int32_t>> run();

 private:
  void find_rows();
  Status first_step();
  Status later_step(int64_t step);
  Status compare(int64_t step);
  TensorView own(const Tensor& all, int64_t step) const;

  Context& context_;
  const Eagle3Drafter& drafter_;
  const Features& features_;
  int64_t drafts_;
  std::vector<int32_t> first_, end_;  // [T] of each row's document
  std::vector<int32_t> rows_;         // [R] rows whose next token is supervised
  std::vector<uint8_t> alive_;        // [R]
  std::vector<int32_t> tokens_;       // [R] drafted in the last step
  std::vector<int32_t> accepted_;     // [T]
  Tensor keys_, values_;
  TensorView fed_, spare_;  // [R, H]
};

void Eagle3Walk::find_rows() {
  const MicroBatch& batch = features_.batch;
  for (size_t d = 0; d + 1 < batch.offsets.size(); ++d) {
    for (int32_t row = batch.offsets[d]; row < batch.offsets[d + 1]; ++row) {
      first_.push_back(batch.offsets[d]);
      end_.push_back(batch.offsets[d + 1]);
      if (supervised_token(batch, row + 1, batch.offsets[d + 1]) >= 0) rows_.push_back(row);
    }
  }
  alive_.assign(rows_.size(), 1);
  tokens_.assign(rows_.size(), 0);
  accepted_.assign(static_cast<size_t>(batch.tokens()), 0);
}

// Keys of step k > 0: those of one row side by side, so that it sees one interval of them.
TensorView Eagle3Walk::own(const Tensor& all, int64_t step) const {
  const int64_t tokens = features_.batch.tokens(), apart = drafts_ - 1;
  const int64_t count = static_cast<int64_t>(rows_.size()), columns = all.view().dim(1);
  TensorView view = all.view().rows(tokens + step - 1, tokens + step);
  view.assign(view.data(), view.dtype(), 2, {count, columns, 0, 0}, {apart * columns, 1, 0, 0});
  return view;
}

Status Eagle3Walk::first_step() {
  const MicroBatch& batch = features_.batch;
  const int64_t tokens = batch.tokens(), count = static_cast<int64_t>(rows_.size());
  std::vector<int32_t> ids, positions, query_positions, intervals;
  for (int32_t row = 0; row < tokens; ++row) {
    const auto at = static_cast<size_t>(row);
    ids.push_back(row + 1 < end_[at] ? static_cast<int32_t>(batch.token_ids[at + 1]) : 0);
    positions.push_back(row - first_[at]);
  }
  for (const int32_t row : rows_) {
    const int32_t first = first_[static_cast<size_t>(row)];
    query_positions.push_back(row - first);
    intervals.insert(intervals.end(), {first, row + 1, 0, 0});
  }
  const Arena::Scope scope(context_.arena);
  const ConstTensorView host = features_.hidden_view();
  const TensorView states =
      context_.arena.take(features_.dtype, {tokens, host.dim(1), host.dim(2)});
  context_.device.copy_bytes(context_.stream, states.data(), host.data(), host.bytes());
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView columns,
                             captured_columns(drafter_.config(), states));
  Eagle3Drafter::DraftRows rows;
  rows.hidden = context_.arena.take(DType::kF32, {tokens, drafter_.config().body.hidden_size});
  drafter_.fuse_states(context_, columns, rows.hidden);
  rows.input_ids = upload(context_, ids, {tokens});
  rows.positions = upload(context_, positions, {tokens});
  rows.query_rows = upload(context_, rows_, {count});
  rows.query_positions = upload(context_, query_positions, {count});
  rows.intervals = upload(context_, intervals, {count, 4});
  rows.keys = rows.own_keys = keys_.view().rows(0, tokens);
  rows.values = rows.own_values = values_.view().rows(0, tokens);
  drafter_.draft_step(context_, rows, fed_);
  return context_.stream.wait_idle();
}

Status Eagle3Walk::later_step(int64_t step) {
  const auto count = static_cast<int64_t>(rows_.size());
  std::vector<int32_t> positions, intervals;
  for (int64_t r = 0; r < count; ++r) {
    const int32_t row = rows_[static_cast<size_t>(r)];
    const int32_t first = first_[static_cast<size_t>(row)];
    const auto own_first = static_cast<int32_t>(features_.batch.tokens() + r * (drafts_ - 1));
    positions.push_back(row - first + static_cast<int32_t>(step));
    intervals.insert(intervals.end(),
                     {first, row + 1, own_first, own_first + static_cast<int32_t>(step)});
  }
  const Arena::Scope scope(context_.arena);
  Eagle3Drafter::DraftRows rows;
  rows.hidden = fed_;
  rows.input_ids = upload(context_, tokens_, {count});
  rows.positions = upload(context_, positions, {count});
  rows.intervals = upload(context_, intervals, {count, 4});
  rows.keys = keys_;
  rows.values = values_;
  rows.own_keys = own(keys_, step);
  rows.own_values = own(values_, step);
  drafter_.draft_step(context_, rows, spare_);
  std::swap(fed_, spare_);
  return context_.stream.wait_idle();
}

Status Eagle3Walk::compare(int64_t step) {
  const Arena::Scope scope(context_.arena);
  const TensorView choice = context_.arena.take(DType::kI32, {static_cast<int64_t>(rows_.size())});
  drafter_.choose(context_, fed_, choice);
  context_.device.copy_bytes(context_.stream, tokens_.data(), choice.data(), choice.bytes());
  PERCHERON_RETURN_IF_ERROR(context_.stream.wait_idle());
  for (size_t r = 0; r < rows_.size(); ++r) {
    tokens_[r] = target_token(drafter_.draft_ids(), tokens_[r]);
    const int32_t row = rows_[r];
    const int32_t truth =
        supervised_token(features_.batch, row + 2 + step, end_[static_cast<size_t>(row)]);
    alive_[r] = alive_[r] != 0 && tokens_[r] == truth ? 1 : 0;
    accepted_[static_cast<size_t>(row)] += alive_[r];
  }
  return ok_status();
}

Result<std::vector<int32_t>> Eagle3Walk::run() {
  find_rows();
  if (rows_.empty()) return accepted_;
  const int64_t tokens = features_.batch.tokens(), count = static_cast<int64_t>(rows_.size());
  const int64_t columns = key_columns(drafter_.config());
  const int64_t hidden_size = drafter_.config().body.hidden_size;
  const int64_t rows = tokens + count * (drafts_ - 1);
  PERCHERON_RETURN_IF_ERROR(drafter_.reserve_positions(context_, tokens + drafts_));
  for (Tensor* tensor : {&keys_, &values_}) {
    PERCHERON_ASSIGN_OR_RETURN(
        *tensor, context_.device.make_tensor(drafter_.compute_dtype(), {rows, columns}));
    context_.device.ops().fill_zero(context_, *tensor);  // Masked keys must still be finite.
  }
  const Arena::Scope scope(context_.arena);
  fed_ = context_.arena.take(DType::kF32, {count, hidden_size});
  spare_ = context_.arena.take(DType::kF32, {count, hidden_size});
  PERCHERON_RETURN_IF_ERROR(first_step());
  PERCHERON_RETURN_IF_ERROR(compare(0));
  for (int64_t step = 1; step < drafts_; ++step) {
    PERCHERON_RETURN_IF_ERROR(later_step(step));
    PERCHERON_RETURN_IF_ERROR(compare(step));
  }
  return accepted_;
}

}  // namespace

Result<std::unique_ptr<DraftSource>> make_eagle3_source(Context& context,
                                                        const Eagle3Drafter& drafter,
                                                        int64_t length_max) {
  const int64_t columns = key_columns(drafter.config());
  PERCHERON_RETURN_IF_ERROR(drafter.reserve_positions(context, length_max));
  PERCHERON_ASSIGN_OR_RETURN(
      Tensor keys, context.device.make_tensor(drafter.compute_dtype(), {length_max, columns}));
  PERCHERON_ASSIGN_OR_RETURN(
      Tensor values, context.device.make_tensor(drafter.compute_dtype(), {length_max, columns}));
  context.device.ops().fill_zero(context, keys);
  context.device.ops().fill_zero(context, values);
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  return std::unique_ptr<DraftSource>(
      std::make_unique<Eagle3Source>(drafter, std::move(keys), std::move(values), length_max));
}

Result<std::vector<int32_t>> eagle3_accepted(Context& context, const Eagle3Drafter& drafter,
                                             const Features& features, int64_t drafts) {
  return Eagle3Walk(context, drafter, features, drafts).run();
}

}  // namespace percheron
