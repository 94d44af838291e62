#include "model/drafter_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "model/parameter_list.h"

namespace percheron {

Status check_features(const Features& features, const DrafterConfig& config, int64_t vocabulary) {
  const MicroBatch& batch = features.batch;
  const int64_t states = static_cast<int64_t>(config.capture.size()) + (features.has_last ? 1 : 0);
  if (features.slots != states || features.hidden_size != config.target_hidden_size) {
    return invalid_argument(fmt::format(
        "features hold {} states of {} per token, the drafter needs {} of {}; capture them with "
        "the drafter's own configuration",
        features.slots, features.hidden_size, states, config.target_hidden_size));
  }
  const size_t bytes = static_cast<size_t>(batch.tokens() * features.slots * features.hidden_size) *
                       dtype_bytes(features.dtype);
  if (features.hidden_states.size() != bytes ||
      (!features.top1.empty() && features.top1.size() != batch.token_ids.size()) ||
      batch.loss_mask.size() != batch.token_ids.size() ||
      batch.offsets.size() != batch.sample_ids.size() + 1) {
    return invalid_argument(fmt::format(
        "features of micro-batch {}/{} have {} bytes of states for {} tokens, {} bytes "
        "are needed, or arrays of unequal length",
        batch.id.epoch, batch.id.index, features.hidden_states.size(), batch.tokens(), bytes));
  }
  for (uint32_t id : batch.token_ids) {
    if (static_cast<int64_t>(id) >= vocabulary) {
      return invalid_argument(
          fmt::format("token id {} is outside the target's vocabulary of {}", id, vocabulary));
    }
  }
  for (int32_t id : features.top1) {
    if (static_cast<int64_t>(id) >= vocabulary) {
      return invalid_argument(
          fmt::format("top-1 id {} is outside the target's vocabulary of {}", id, vocabulary));
    }
  }
  return ok_status();
}

Status check_draft_ids(std::span<const int32_t> draft_ids, int64_t size, int64_t vocabulary) {
  const int64_t ids = draft_ids.empty() ? vocabulary : std::ssize(draft_ids);
  if (size != ids) {
    return invalid_argument(
        fmt::format("drafter: draft_vocab_size {} but the vocabulary map has {} ids", size, ids));
  }
  for (size_t i = 0; i < draft_ids.size(); ++i) {
    const bool ascending = i == 0 || draft_ids[i - 1] < draft_ids[i];
    if (draft_ids[i] < 0 || draft_ids[i] >= vocabulary || !ascending) {
      return invalid_argument(fmt::format(
          "draft vocabulary: id {} at row {} is not an ascending id below {}; rebuild the map for "
          "this target",
          draft_ids[i], i, vocabulary));
    }
  }
  return ok_status();
}

std::vector<int32_t> draft_rows_of(std::span<const int32_t> draft_ids, int64_t vocabulary) {
  std::vector<int32_t> rows;
  if (draft_ids.empty()) return rows;
  rows.assign(static_cast<size_t>(vocabulary), -1);
  for (size_t row = 0; row < draft_ids.size(); ++row) {
    rows[static_cast<size_t>(draft_ids[row])] = static_cast<int32_t>(row);
  }
  return rows;
}

int64_t longest_document(const MicroBatch& batch) {
  int64_t longest = 0;
  for (int64_t d = 0; d < batch.documents(); ++d) {
    longest = std::max<int64_t>(longest, batch.offsets[d + 1] - batch.offsets[d]);
  }
  return longest;
}

int64_t loss_chunk_rows(const LossConfig& loss, int64_t vocabulary) {
  const int64_t row_bytes = 2 * vocabulary * static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(1, loss.workspace_bytes / row_bytes);
}

int64_t padded_rows(const Device& device, int64_t rows) {
  if (!device.info().graphs) return rows;
  constexpr uint64_t kRowsMin = 16;
  const uint64_t step = std::max(kRowsMin, std::bit_floor(static_cast<uint64_t>(rows)) / 16);
  return static_cast<int64_t>((static_cast<uint64_t>(rows) + step - 1) / step * step);
}

TensorView upload_states(Context& context, const Features& features, int64_t rows,
                         StateUpload* upload) {
  const int64_t tokens = features.batch.tokens();
  const TensorView states =
      context.arena.take(features.dtype, {rows, features.slots * features.hidden_size});
  const TensorView given = states.rows(0, tokens);
  if (upload == nullptr || !upload->copy_to(context, features, given)) {
    context.device.copy_bytes(context.stream, given.data(), features.hidden_states.data(),
                              given.bytes());
  }
  if (rows > tokens) context.device.ops().fill_zero(context, states.rows(tokens, rows));
  return states;
}

std::vector<uint64_t> graph_key(std::initializer_list<ConstTensorView> tensors,
                                const LossConfig& loss) {
  std::vector<uint64_t> key = {loss.hard_labels ? 1u : 0u,
                               static_cast<uint64_t>(loss.workspace_bytes)};
  for (const LossTerm& term : loss_terms(loss)) {
    key.push_back(static_cast<uint64_t>(term.kind));
    key.push_back(std::bit_cast<uint64_t>(term.factor));
  }
  for (const ConstTensorView& x : tensors) {
    key.push_back(reinterpret_cast<uintptr_t>(x.data()));
    key.push_back(static_cast<uint64_t>(x.dtype()));
    for (int i = 0; i < x.rank(); ++i) key.push_back(static_cast<uint64_t>(x.dim(i)));
  }
  return key;
}

std::vector<LossTerm> loss_terms(const LossConfig& loss) {
  if (!loss.mixture.empty()) return loss.mixture;
  return {LossTerm{loss.teacher_loss, 1.0}};
}

void teacher_logits(Context& context, const TargetParts& target, const FrozenHead& head,
                    ConstTensorView last, ConstTensorView rows, DType dtype, TensorView logits) {
  const Ops& ops = context.device.ops();
  const Arena::Scope scope(context.arena);
  const int64_t count = rows.dim(0), hidden = last.dim(1);
  const TensorView chosen = context.arena.take(DType::kF32, {count, hidden});
  const TensorView normed = context.arena.take(dtype, {count, hidden});
  ops.gather_rows(context, last, rows, chosen);
  ops.rms_norm(context, chosen, target.final_norm, static_cast<float>(target.rms_norm_eps), normed,
               TensorView());
  head.forward(context, normed, logits);
}

}  // namespace percheron
