#include "model/capture_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/capture_checks.h"
#include "model/parameter_list.h"

namespace percheron {
namespace {

constexpr size_t kAlignmentBytes = 64;
// Of states that are put in order and then looked at while they are in a cache.
constexpr size_t kPieceBytes = size_t{256} << 10;

size_t aligned(size_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

PackedSequences sequences_of(const MicroBatch& batch) {
  PackedSequences rows;
  rows.token_ids.assign(batch.token_ids.begin(), batch.token_ids.end());
  rows.offsets = batch.offsets;
  return rows;
}

Status check_states(const Features& features, ConstTensorView states, int64_t first_row,
                    const Target& target) {
  const int64_t bad = first_not_finite(states);
  if (bad < 0) return ok_status();
  const std::vector<int64_t>& capture = target.options().capture;
  const int64_t slot = bad / features.hidden_size % features.slots;
  const int64_t layer = slot < static_cast<int64_t>(capture.size())
                            ? capture[static_cast<size_t>(slot)]
                            : target.config().num_hidden_layers;
  return state_not_finite(features.batch, first_row + bad / (features.hidden_size * features.slots),
                          layer == 0 ? "0 (embedding)" : fmt::format("after layer {}", layer));
}

}  // namespace

CapturePass::CapturePass(Target& target, DType feature_dtype, Top1 top1)
    : target_(target), dtype_(feature_dtype), top1_(top1) {
  PERCHERON_CHECK(feature_dtype == DType::kF32 || feature_dtype == DType::kBf16,
                  "features are f32 or bf16");
}

// The device reads the host's memory, and writes it, until then.
CapturePass::~CapturePass() {
  if (under_way_) (void)copied_->wait();
}

int64_t CapturePass::slots() const {
  const TargetOptions& options = target_.options();
  return static_cast<int64_t>(options.capture.size()) + (options.capture_last ? 1 : 0);
}

size_t CapturePass::slot_bytes(int64_t tokens) const {
  return static_cast<size_t>(tokens * target_.config().hidden_size) * dtype_bytes(dtype_);
}

CapturePass::Layout CapturePass::layout(int64_t tokens, int64_t rows) const {
  Layout layout;
  layout.ids = immediate_ ? 0 : aligned(static_cast<size_t>(slots()) * slot_bytes(tokens));
  layout.last = layout.ids;
  if (top1_ == Top1::kYes) layout.last += aligned(static_cast<size_t>(rows) * sizeof(int32_t));
  layout.end = layout.last;
  if (checks_last()) {
    layout.end += static_cast<size_t>(rows * target_.config().hidden_size) * sizeof(float);
  }
  return layout;
}

Status CapturePass::reserve(Device& device, int64_t tokens) {
  if (!passed_) {
    passed_ = device.make_event();
    copied_ = device.make_event();
    immediate_ = device.info().immediate;
  }
  if (tokens <= tokens_reserved_) return ok_status();
  const size_t bytes = layout(tokens, tokens).end;
  if (immediate_) {
    in_host_.resize(bytes);
  } else {
    // Before there are larger ones, so that they never lie side by side.
    device_ = Buffer();
    host_ = Buffer();
    tokens_reserved_ = 0;
    PERCHERON_ASSIGN_OR_RETURN(device_, device.allocate(bytes));
    PERCHERON_ASSIGN_OR_RETURN(host_, device.allocate_host(bytes));
  }
  tokens_reserved_ = tokens;
  return ok_status();
}

TensorView CapturePass::captured() {
  const int64_t tokens = features_.batch.tokens(), hidden = features_.hidden_size;
  if (features_.slots == 0) return {};
  if (immediate_) {
    return TensorView(features_.hidden_states.data(), dtype_, {tokens, features_.slots, hidden});
  }
  TensorView view;
  view.assign(device_.data(), dtype_, 3, {tokens, features_.slots, hidden, 0},
              {hidden, tokens * hidden, 1, 0});
  return view;
}

void CapturePass::copy_to_host(Device& device, Stream& copies, size_t offset, size_t bytes) {
  device.copy_bytes(copies, host() + offset, static_cast<std::byte*>(device_.data()) + offset,
                    bytes);
}

Status CapturePass::begin(Context& context, Stream& copies, const MicroBatch& batch) {
  PERCHERON_CHECK(batch.loss_mask.size() == batch.token_ids.size() &&
                      batch.offsets.size() == batch.sample_ids.size() + 1,
                  "a micro-batch has a mask per token and a sample id per document");
  if (under_way_) PERCHERON_RETURN_IF_ERROR(copied_->wait());  // Of one that nobody finished.
  under_way_ = false;
  PERCHERON_RETURN_IF_ERROR(reserve(context.device, batch.tokens()));
  rows_ = sequences_of(batch);
  features_ = Features();
  features_.batch = batch;
  features_.dtype = dtype_;
  features_.has_last = target_.options().capture_last;
  features_.slots = slots();
  features_.hidden_size = target_.config().hidden_size;
  if (immediate_) {
    features_.hidden_states.resize(static_cast<size_t>(slots()) * slot_bytes(batch.tokens()));
  }
  top1_rows_.clear();
  if (top1_ == Top1::kYes) {
    features_.top1.assign(batch.token_ids.size(), -1);
    for (size_t d = 0; d + 1 < batch.offsets.size(); ++d) add_supervised_rows(batch, d, top1_rows_);
  }
  const Status put = put_in(context, copies);
  if (put.ok()) {
    under_way_ = true;
    return ok_status();
  }
  // Nothing of it may run on while its memory is used for something else.
  (void)context.stream.wait_idle();
  (void)copies.wait_idle();
  return put;
}

Status CapturePass::put_in(Context& context, Stream& copies) {
  const int64_t tokens = features_.batch.tokens();
  Arena::Scope scope(context.arena);
  TensorView last;
  if (top1_ == Top1::kYes) {
    last = context.arena.take(DType::kF32, {tokens, features_.hidden_size});
  }
  const auto written = [&](int64_t slot) {
    if (immediate_) return;
    context.stream.record(*passed_);
    copies.wait_for(*passed_);
    const size_t bytes = slot_bytes(tokens);
    copy_to_host(context.device, copies, static_cast<size_t>(slot) * bytes, bytes);
  };
  PERCHERON_ASSIGN_OR_RETURN(held_,
                             target_.begin_forward(context, rows_, captured(), last, written));
  if (!top1_rows_.empty()) choose_top1(context, last);
  context.stream.record(*passed_);
  copies.wait_for(*passed_);
  const Layout parts = layout(tokens, static_cast<int64_t>(top1_rows_.size()));
  if (!immediate_ && parts.end > parts.ids) {
    copy_to_host(context.device, copies, parts.ids, parts.end - parts.ids);
  }
  copies.record(*copied_);
  PERCHERON_RETURN_IF_ERROR(context.stream.check());
  return copies.check();
}

void CapturePass::choose_top1(Context& context, ConstTensorView last) {
  const auto count = static_cast<int64_t>(top1_rows_.size());
  const Layout parts = layout(features_.batch.tokens(), count);
  std::byte* const base = immediate_ ? in_host_.data() : static_cast<std::byte*>(device_.data());
  const TensorView ids(base + parts.ids, DType::kI32, {count});
  const TensorView gathered =
      checks_last() ? TensorView(base + parts.last, DType::kF32, {count, features_.hidden_size})
                    : context.arena.take(DType::kF32, {count, features_.hidden_size});
  const TensorView indices = upload(context, top1_rows_, {count});
  context.device.ops().gather_rows(context, last, indices, gathered);
  target_.top1(context, gathered, ids);
}

Status CapturePass::wait_pass() { return passed_->wait(); }

Result<Features> CapturePass::finish() {
  PERCHERON_CHECK(under_way_, "a capture is finished once, after it has begun");
  const Status done = copied_->wait();
  under_way_ = false;
  held_ = nullptr;
  PERCHERON_RETURN_IF_ERROR(done);
  PERCHERON_RETURN_IF_ERROR(take_states());
  PERCHERON_RETURN_IF_ERROR(take_top1());
  return std::move(features_);
}

// From [slots, T, H] to [T, slots, H].
Status CapturePass::take_states() {
  if (features_.slots == 0) return ok_status();
  if (immediate_) return check_states(features_, features_.hidden_view(), 0, target_);
  const int64_t tokens = features_.batch.tokens();
  const size_t row_bytes = slot_bytes(1), all_bytes = static_cast<size_t>(slots()) * row_bytes;
  const int64_t piece = std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes / all_bytes));
  std::vector<std::byte>& states = features_.hidden_states;
  states.reserve(static_cast<size_t>(tokens) * all_bytes);  // Not filled: this is all of it.
  for (int64_t begin = 0; begin < tokens; begin += piece) {
    const int64_t end = std::min(tokens, begin + piece);
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t slot = 0; slot < features_.slots; ++slot) {
        const std::byte* from = host() + static_cast<size_t>(slot) * slot_bytes(tokens) +
                                static_cast<size_t>(row) * row_bytes;
        states.insert(states.end(), from, from + row_bytes);
      }
    }
    const ConstTensorView done(states.data() + static_cast<size_t>(begin) * all_bytes, dtype_,
                               {end - begin, features_.slots, features_.hidden_size});
    PERCHERON_RETURN_IF_ERROR(check_states(features_, done, begin, target_));
  }
  return ok_status();
}

Status CapturePass::take_top1() {
  if (top1_rows_.empty()) return ok_status();
  const auto count = static_cast<int64_t>(top1_rows_.size());
  const int64_t hidden = features_.hidden_size;
  const Layout parts = layout(features_.batch.tokens(), count);
  if (checks_last()) {
    const int64_t bad =
        first_not_finite(ConstTensorView(host() + parts.last, DType::kF32, {count, hidden}));
    if (bad >= 0) {
      return state_not_finite(features_.batch, top1_rows_[static_cast<size_t>(bad / hidden)],
                              fmt::format("after layer {}", target_.config().num_hidden_layers));
    }
  }
  for (size_t i = 0; i < top1_rows_.size(); ++i) {
    int32_t id = 0;
    std::memcpy(&id, host() + parts.ids + i * sizeof(id), sizeof(id));
    features_.top1[static_cast<size_t>(top1_rows_[i])] = id;
  }
  return ok_status();
}

}  // namespace percheron
