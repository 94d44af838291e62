#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/features.h"
#include "model/drafter.h"

namespace percheron {

/// Where a DFlash block stands: its anchor's row in the micro-batch and that row's document.
struct DflashAnchor {
  int32_t row = 0;
  int32_t document = 0;

  bool operator==(const DflashAnchor&) const = default;
};

/// Draws each document's anchors without replacement, ascending: rows a with m[a] = m[a + 1] = 1 in
/// one document, at most loss.anchors_max, and at most one per loss.supervised_per_anchor
/// supervised tokens (rounded up) if that is > 0. A pure function of (loss.seed, epoch, sample id).
/// Source: SpecForge's candidate rule.
std::vector<DflashAnchor> draw_anchors(const MicroBatch& batch, const LossConfig& loss);

/// Blocks of S slots and what they learn: slot s of a block with anchor a is the token at position
/// a + s, predicted at its own slot (no shift: SpecForge#471, #473); slot 0 is the anchor and
/// learns nothing. Source: docs/training.md, "DFlash: blocks".
struct DflashBlocks {
  int64_t tokens = 0;                 // T
  int64_t block_size = 0;             // S
  std::vector<DflashAnchor> anchors;  // N
  std::vector<int32_t> begins;        // [N] first row of the anchor's document

  std::vector<int32_t> context_positions;  // [T] place in the document
  std::vector<int32_t> block_positions;    // [N S]
  std::vector<int32_t> input_ids;          // [N S] anchor token, then mask tokens

  // Of every slot that is trained; R of them.
  std::vector<int32_t> rows;  // [R] n S + s
  /// [R] draft row of the data's token, 0 if it has none (teacher losses only).
  std::vector<int32_t> labels;
  /// [R] row of the last hidden states that predicts the slot: a + s - 1.
  std::vector<int32_t> teacher_rows;
  std::vector<float> weights;  // [R]

  // For metrics. status[n S + s]: index into rows, or one of these.
  static constexpr int32_t kUnsupervised = -1;
  /// Supervised, but the drafter can't say the token.
  static constexpr int32_t kOutsideDraftVocab = -2;
  std::vector<int32_t> status;
  std::vector<int32_t> truth;  // [R] target id that a right draft has, -1 if only the teacher knows

  double weight = 0;  // the micro-batch's share of the denominator
  int64_t supervised = 0;
};

/// Lays out the blocks of `anchors`. Labels never cross documents unless loss.cross_documents;
/// slots beyond a document's end stay in the block, as they do when drafting, without a loss
/// (speculators#1061). `to_draft`: [V] or empty. kInvalidArgument when the gate of a teacher loss
/// is on and the features lack top-1 ids.
Result<DflashBlocks> plan_dflash_blocks(const Features& features, const DrafterConfig& config,
                                        const LossConfig& loss, std::vector<DflashAnchor> anchors,
                                        std::span<const int32_t> to_draft);

/// The window of a draft layer, 0 for full attention.
int64_t window_of(const DrafterConfig& config, size_t layer);

/// [N S, 4] keys that each query row sees in a layer of `window` keys (0 = full attention): context
/// rows before its anchor, by original position (SpecForge#470), and its own block. Keys: T context
/// rows, then the N S block rows.
std::vector<int32_t> dflash_intervals(const DflashBlocks& blocks, const DrafterConfig& config,
                                      int64_t window);

/// D-PACE: w_s = sum over supervised r >= s of prod over supervised q <= r of ((1 - alpha)
/// exp(-loss_q) + alpha). loss: [R]; returns [R] and sets blocks.weight where the denominator is
/// the weights. Source: arXiv 2605.18810.
std::vector<float> dpace_weights(std::span<const float> loss_of_row, const LossConfig& loss,
                                 DflashBlocks& blocks);

/// What the loss stage found for each trained slot, on the host.
struct DflashOutcome {
  std::vector<float> loss;              // [R], not weighted
  std::vector<int32_t> argmax;          // [R] draft row
  std::vector<int32_t> teacher_argmax;  // [R], empty with hard labels
};

/// Losses and metrics of a micro-batch, position s - 1 = slot s. A draft is right if its target id
/// is the data's token (hard labels), else the teacher's choice. The run of a block ends at the
/// first wrong or unsupervised slot.
StepSums sum_up_dflash(const DflashBlocks& blocks, const DflashOutcome& outcome,
                       std::span<const int32_t> draft_ids);

}  // namespace percheron
