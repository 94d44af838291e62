#include <fmt/format.h>

#include <algorithm>

#include "model/capture_checks.h"
#include "model/capture_pass.h"
#include "model/target.h"
#include "model/weights.h"

namespace percheron {
namespace {

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
    return state_not_finite(features.batch, rows[static_cast<size_t>(bad / hidden)],
                            fmt::format("after layer {}", target.config().num_hidden_layers));
  }
  for (size_t i = 0; i < rows.size(); ++i)
    features.top1[static_cast<size_t>(rows[i])] = host_ids[i];
  return ok_status();
}

}  // namespace

Status state_not_finite(const MicroBatch& batch, int64_t row, const std::string& state) {
  const auto after = std::upper_bound(batch.offsets.begin(), batch.offsets.end(), row);
  const auto document = static_cast<size_t>(after - batch.offsets.begin()) - 1;
  return data_loss(
      fmt::format("sample {} (micro-batch {} of epoch {}): the target's state {} is "
                  "not finite at token {}",
                  batch.sample_ids[document], batch.id.index, batch.id.epoch, state,
                  row - batch.offsets[document]));
}

void add_supervised_rows(const MicroBatch& batch, size_t d, std::vector<int32_t>& rows) {
  for (int32_t row = batch.offsets[d]; row + 1 < batch.offsets[d + 1]; ++row) {
    if (batch.loss_mask[static_cast<size_t>(row) + 1] != 0) rows.push_back(row);
  }
}

Result<Features> capture_features(Context& context, Target& target, const MicroBatch& batch,
                                  DType feature_dtype, Top1 top1) {
  const std::unique_ptr<Stream> copies = context.device.make_stream();
  CapturePass pass(target, feature_dtype, top1);
  PERCHERON_RETURN_IF_ERROR(pass.begin(context, *copies, batch));
  return pass.finish();
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
