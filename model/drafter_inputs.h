#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/drafter.h"
#include "model/frozen_head.h"

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
/// stream `last` [T, H]. The norm is rounded to `dtype`. `rows` must live until the stream is idle.
/// logits: [R, head.rows()] f32.
void teacher_logits(Context& context, const TargetParts& target, const FrozenHead& head,
                    ConstTensorView last, std::span<const int32_t> rows, DType dtype,
                    TensorView logits);

/// The terms of the teacher loss: the mixture, or the one kind with factor 1.
std::vector<LossTerm> loss_terms(const LossConfig& loss);

}  // namespace percheron
