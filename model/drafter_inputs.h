#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "model/drafter.h"
#include "model/frozen_head.h"
#include "model/state_upload.h"

namespace percheron {

/// Whether features fit the drafter that is to learn from them: captured states, sizes, token ids
/// within `vocabulary`. kInvalidArgument says which field differs.
Status check_features(const Features& features, const DrafterConfig& config, int64_t vocabulary);

/// Draft vocabularies are `size` ascending ids of the target's, [0, vocabulary); none means all of
/// these. kInvalidArgument says which id or number is wrong.
Status check_draft_ids(std::span<const int32_t> draft_ids, int64_t size, int64_t vocabulary);

/// [vocabulary] row of each target id in the draft vocabulary or -1; empty if `draft_ids` is (the
/// whole vocabulary).
std::vector<int32_t> draft_rows_of(std::span<const int32_t> draft_ids, int64_t vocabulary);

int64_t longest_document(const MicroBatch& batch);

/// Rows of logits [.., vocabulary] f32 that fit twice into loss.workspace_bytes, at least one.
int64_t loss_chunk_rows(const LossConfig& loss, int64_t vocabulary);

/// What a drafter learns from: final norm and head over rows `rows` of the target's last residual
/// stream `last` [T, H]. The norm is rounded to `dtype`. rows: I32 [R]. logits: [R, head.rows()]
/// f32.
void teacher_logits(Context& context, const TargetParts& target, const FrozenHead& head,
                    ConstTensorView last, ConstTensorView rows, DType dtype, TensorView logits);

/// The rows that a micro-batch's `rows` are padded to on a device with graphs: the next of at most
/// 16 sizes between a power of two and the next, so that micro-batches of nearly the same size have
/// the same shapes and share a graph; rows that are added learn nothing and cost a sixteenth at
/// most, from 256 rows on. `rows` itself on other devices.
int64_t padded_rows(const Device& device, int64_t rows);

/// `values` [groups, from * width] with groups of `to` * width, `fill` behind each.
template <class T>
std::vector<T> widened(std::span<const T> values, int64_t from, int64_t to, int64_t width, T fill) {
  std::vector<T> wide;
  if (from == 0) return wide;
  const int64_t groups = std::ssize(values) / (from * width);
  wide.reserve(static_cast<size_t>(groups * to * width));
  for (int64_t g = 0; g < groups; ++g) {
    const auto begin = values.begin() + g * from * width;
    wide.insert(wide.end(), begin, begin + from * width);
    wide.resize(static_cast<size_t>((g + 1) * to * width), fill);
  }
  return wide;
}

/// Brings captured states [T, slots H] into a tensor of `rows` rows from the arena, zeros behind
/// them: from `upload` if they are there (null: they are nowhere), else from the features, which
/// must live until the stream is idle.
TensorView upload_states(Context& context, const Features& features, int64_t rows,
                         StateUpload* upload);

/// A graph's key of work on these tensors with this loss: what of both is given to operations.
/// Absent tensors may be among them.
std::vector<uint64_t> graph_key(std::initializer_list<ConstTensorView> tensors,
                                const LossConfig& loss);

/// The terms of the teacher loss: the mixture, or the one kind with factor 1.
std::vector<LossTerm> loss_terms(const LossConfig& loss);

}  // namespace percheron
