#include <fmt/format.h>

#include <algorithm>

#include "model/target.h"
#include "model/weights.h"

namespace percheron {
namespace {

PackedSequences sequences_of(const MicroBatch& batch) {
  PackedSequences rows;
  rows.token_ids.reserve(batch.token_ids.size());
  for (const uint32_t id : batch.token_ids) rows.token_ids.push_back(static_cast<int32_t>(id));
  rows.offsets = batch.offsets;
  return rows;
}

size_t document_of(const MicroBatch& batch, int64_t row) {
  const auto after = std::upper_bound(batch.offsets.begin(), batch.offsets.end(), row);
  return static_cast<size_t>(after - batch.offsets.begin()) - 1;
}

Status not_finite(const MicroBatch& batch, int64_t row, const std::string& state) {
  const size_t document = document_of(batch, row);
  return data_loss(
      fmt::format("sample {} (micro-batch {} of epoch {}): the target's state {} is "
                  "not finite at token {}",
                  batch.sample_ids[document], batch.id.index, batch.id.epoch, state,
                  row - batch.offsets[document]));
}

Status check_features(const Features& features, const TargetOptions& options, int64_t layers) {
  const int64_t bad = first_not_finite(features.hidden_view());
  if (bad < 0) return ok_status();
  const int64_t slot = bad / features.hidden_size % features.slots;
  const int64_t layer = slot < static_cast<int64_t>(options.capture.size())
                            ? options.capture[static_cast<size_t>(slot)]
                            : layers;
  return not_finite(features.batch, bad / (features.hidden_size * features.slots),
                    layer == 0 ? "0 (embedding)" : fmt::format("after layer {}", layer));
}

// The rows of document `d` whose next token is supervised and of the same document.
void add_supervised_rows(const MicroBatch& batch, size_t d, std::vector<int32_t>& rows) {
  for (int32_t row = batch.offsets[d]; row + 1 < batch.offsets[d + 1]; ++row) {
    if (batch.loss_mask[static_cast<size_t>(row) + 1] != 0) rows.push_back(row);
  }
}

// Sets features.top1 of `rows` to the target's choices after the states `gathered`, which are
// theirs, [rows, H] f32 on the device.
Status set_top1(Context& context, Target& target, std::span<const int32_t> rows,
                const TensorView& gathered, Features& features) {
  const int64_t hidden = features.hidden_size;
  const TensorView ids = context.arena.take(DType::kI32, {static_cast<int64_t>(rows.size())});
  target.top1(context, gathered, ids);
  std::vector<int32_t> host_ids(rows.size());
  std::vector<float> states(rows.size() * static_cast<size_t>(hidden));
  context.device.copy_bytes(context.stream, host_ids.data(), ids.data(), ids.bytes());
  context.device.copy_bytes(context.stream, states.data(), gathered.data(), gathered.bytes());
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  const int64_t bad = first_not_finite(view_of(std::span<const float>(states)));
  if (bad >= 0) {
    return not_finite(features.batch, rows[static_cast<size_t>(bad / hidden)],
                      fmt::format("after layer {}", target.config().num_hidden_layers));
  }
  for (size_t i = 0; i < rows.size(); ++i)
    features.top1[static_cast<size_t>(rows[i])] = host_ids[i];
  return ok_status();
}

// Fills features.top1 from the last states [T, H].
Status fill_top1(Context& context, Target& target, ConstTensorView last, Features& features) {
  features.top1.assign(features.batch.token_ids.size(), -1);
  std::vector<int32_t> rows;
  for (size_t d = 0; d + 1 < features.batch.offsets.size(); ++d) {
    add_supervised_rows(features.batch, d, rows);
  }
  const int64_t count = static_cast<int64_t>(rows.size());
  if (count == 0) return ok_status();
  Arena::Scope scope(context.arena);
  const TensorView indices = context.arena.take(DType::kI32, {count});
  const TensorView gathered = context.arena.take(DType::kF32, {count, features.hidden_size});
  context.device.copy_bytes(context.stream, indices.data(), rows.data(), indices.bytes());
  context.device.ops().gather_rows(context, last, indices, gathered);
  return set_top1(context, target, rows, gathered, features);
}

}  // namespace

Result<Features> capture_features(Context& context, Target& target, const MicroBatch& batch,
                                  DType feature_dtype, Top1 top1) {
  PERCHERON_CHECK(feature_dtype == DType::kF32 || feature_dtype == DType::kBf16,
                  "features are f32 or bf16");
  PERCHERON_CHECK(batch.loss_mask.size() == batch.token_ids.size() &&
                      batch.offsets.size() == batch.sample_ids.size() + 1,
                  "a micro-batch has a mask per token and a sample id per document");
  const TargetOptions& options = target.options();
  Features features;
  features.batch = batch;
  features.dtype = feature_dtype;
  features.has_last = options.capture_last;
  features.slots = static_cast<int64_t>(options.capture.size()) + (options.capture_last ? 1 : 0);
  features.hidden_size = target.config().hidden_size;
  const int64_t tokens = batch.tokens();

  Arena::Scope scope(context.arena);
  TensorView captured, last;
  if (features.slots > 0) {
    captured = context.arena.take(feature_dtype, {tokens, features.slots, features.hidden_size});
  }
  if (top1 == Top1::kYes) last = context.arena.take(DType::kF32, {tokens, features.hidden_size});
  PERCHERON_RETURN_IF_ERROR(target.forward(context, sequences_of(batch), nullptr, captured, last));
  features.hidden_states.resize(captured.present() ? captured.bytes() : 0);
  if (captured.present()) {
    context.device.copy_bytes(context.stream, features.hidden_states.data(), captured.data(),
                              captured.bytes());
    PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
    PERCHERON_RETURN_IF_ERROR(check_features(features, options, target.config().num_hidden_layers));
  }
  if (top1 == Top1::kYes) PERCHERON_RETURN_IF_ERROR(fill_top1(context, target, last, features));
  return features;
}

Status choose_top1(Context& context, Target& target, std::span<const int32_t> documents,
                   Features& features) {
  PERCHERON_CHECK(features.has_last && features.top1.size() == features.batch.token_ids.size(),
                  "top-1 ids follow from the last state and have a place");
  std::vector<int32_t> rows;
  for (const int32_t d : documents) {
    add_supervised_rows(features.batch, static_cast<size_t>(d), rows);
  }
  if (rows.empty()) return ok_status();
  const int64_t hidden = features.hidden_size;
  std::vector<float> states;
  for (const int32_t row : rows) {
    const ConstTensorView slots = features.hidden_view().rows(row, row + 1);
    const std::vector<float> last = to_floats(
        slots.reshaped({features.slots, hidden}).rows(features.slots - 1, features.slots));
    states.insert(states.end(), last.begin(), last.end());
  }
  Arena::Scope scope(context.arena);
  const TensorView gathered =
      context.arena.take(DType::kF32, {static_cast<int64_t>(rows.size()), hidden});
  context.device.copy_bytes(context.stream, gathered.data(), states.data(), gathered.bytes());
  return set_top1(context, target, rows, gathered, features);
}

}  // namespace percheron
