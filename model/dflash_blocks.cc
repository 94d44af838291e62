#include "model/dflash_blocks.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace percheron {
namespace {

int64_t anchor_count(int64_t candidates, int64_t supervised, const LossConfig& loss) {
  int64_t count = std::min(candidates, loss.anchors_max);
  if (loss.supervised_per_anchor > 0) {
    const double share = static_cast<double>(supervised) / loss.supervised_per_anchor;
    count = std::min(count, static_cast<int64_t>(std::ceil(share)));
  }
  return count;
}

double slot_weight(const LossConfig& loss, int64_t slot) {
  return loss.position_weight == PositionWeight::kExponential
             ? std::exp(-static_cast<double>(slot - 1) / loss.gamma)
             : 1.0;
}

/// Decides what one slot learns and enters it.
class SlotRows {
 public:
  SlotRows(const Features& features, const LossConfig& loss, std::span<const int32_t> to_draft,
           DflashBlocks& blocks)
      : features_(features), loss_(loss), to_draft_(to_draft), blocks_(blocks) {}

  void add(int64_t row, int64_t at, int64_t slot) {
    supervised_slots_ += 1;
    weights_ += slot_weight(loss_, slot);
    const int32_t token = static_cast<int32_t>(features_.batch.token_ids[at]);
    const int32_t label = draft_row(token);
    const int32_t top1 = features_.top1.empty() ? -1 : features_.top1[at - 1];
    const bool gated = loss_.gate_on_draft_vocab && !to_draft_.empty();
    const bool outside = loss_.hard_labels ? label < 0 : gated && (top1 < 0 || draft_row(top1) < 0);
    if (outside) {
      blocks_.status[row] = DflashBlocks::kOutsideDraftVocab;
      return;
    }
    blocks_.status[row] = static_cast<int32_t>(blocks_.rows.size());
    blocks_.rows.push_back(static_cast<int32_t>(row));
    blocks_.labels.push_back(std::max(label, 0));
    blocks_.teacher_rows.push_back(static_cast<int32_t>(at - 1));
    blocks_.weights.push_back(static_cast<float>(slot_weight(loss_, slot)));
    blocks_.truth.push_back(loss_.hard_labels ? token : top1);
  }

  double denominator(const MicroBatch& batch) const {
    switch (loss_.denominator) {
      case Denominator::kSupervised:
      case Denominator::kValid: return supervised_slots_;
      case Denominator::kAll: return static_cast<double>(batch.tokens());
      case Denominator::kDocuments: return static_cast<double>(batch.documents());
      case Denominator::kWeights: return weights_;
    }
    return supervised_slots_;
  }

 private:
  int32_t draft_row(int32_t id) const { return to_draft_.empty() ? id : to_draft_[id]; }

  const Features& features_;
  const LossConfig& loss_;
  std::span<const int32_t> to_draft_;
  DflashBlocks& blocks_;
  double supervised_slots_ = 0, weights_ = 0;  // also of labels outside the draft vocabulary
};

void lay_out_positions(const MicroBatch& batch, int64_t mask_token_id, DflashBlocks& blocks) {
  blocks.context_positions.resize(batch.token_ids.size());
  for (int64_t d = 0; d < batch.documents(); ++d) {
    for (int32_t i = batch.offsets[d]; i < batch.offsets[d + 1]; ++i) {
      blocks.context_positions[i] = i - batch.offsets[d];
      blocks.supervised += batch.loss_mask[i];
    }
  }
  for (const DflashAnchor& anchor : blocks.anchors) {
    const int32_t begin = batch.offsets[anchor.document];
    blocks.begins.push_back(begin);
    for (int64_t s = 0; s < blocks.block_size; ++s) {
      blocks.block_positions.push_back(anchor.row - begin + static_cast<int32_t>(s));
      blocks.input_ids.push_back(s == 0 ? static_cast<int32_t>(batch.token_ids[anchor.row])
                                        : static_cast<int32_t>(mask_token_id));
    }
  }
}

}  // namespace

std::vector<DflashAnchor> draw_anchors(const MicroBatch& batch, const LossConfig& loss) {
  std::vector<DflashAnchor> anchors;
  for (int64_t d = 0; d < batch.documents(); ++d) {
    std::vector<int32_t> candidates;
    int64_t supervised = 0;
    for (int32_t a = batch.offsets[d]; a < batch.offsets[d + 1]; ++a) {
      supervised += batch.loss_mask[a];
      if (a + 1 < batch.offsets[d + 1] && batch.loss_mask[a] == 1 && batch.loss_mask[a + 1] == 1) {
        candidates.push_back(a);
      }
    }
    const int64_t count = anchor_count(static_cast<int64_t>(candidates.size()), supervised, loss);
    Random random = Random::keyed(loss.seed, "anchors", static_cast<uint64_t>(batch.id.epoch),
                                  batch.sample_ids[d]);
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t left = candidates.size() - static_cast<uint64_t>(i);
      std::swap(candidates[i], candidates[i + static_cast<int64_t>(random.below(left))]);
    }
    std::sort(candidates.begin(), candidates.begin() + count);
    for (int64_t i = 0; i < count; ++i) {
      anchors.push_back(DflashAnchor{candidates[i], static_cast<int32_t>(d)});
    }
  }
  return anchors;
}

Result<DflashBlocks> plan_dflash_blocks(const Features& features, const DrafterConfig& config,
                                        const LossConfig& loss, std::vector<DflashAnchor> anchors,
                                        std::span<const int32_t> to_draft) {
  const MicroBatch& batch = features.batch;
  if (!loss.hard_labels && loss.gate_on_draft_vocab && !to_draft.empty() && features.top1.empty()) {
    return invalid_argument(
        "loss.gate_on_draft_vocab needs the target's top-1 ids, which these features lack; capture "
        "them with top-1 or set loss.gate_on_draft_vocab: false");
  }
  DflashBlocks blocks;
  blocks.tokens = batch.tokens();
  blocks.block_size = config.block_size;
  blocks.anchors = std::move(anchors);
  lay_out_positions(batch, config.mask_token_id, blocks);
  blocks.status.assign(blocks.input_ids.size(), DflashBlocks::kUnsupervised);
  SlotRows slots(features, loss, to_draft, blocks);
  for (size_t n = 0; n < blocks.anchors.size(); ++n) {
    const DflashAnchor& anchor = blocks.anchors[n];
    const int64_t end = loss.cross_documents ? batch.tokens() : batch.offsets[anchor.document + 1];
    for (int64_t s = 1; s < config.block_size; ++s) {
      const int64_t at = anchor.row + s;
      if (at < end && batch.loss_mask[at] == 1) {
        slots.add(static_cast<int64_t>(n) * config.block_size + s, at, s);
      }
    }
  }
  blocks.weight = slots.denominator(batch) + loss.denominator_epsilon;
  return blocks;
}

int64_t window_of(const DrafterConfig& config, size_t layer) {
  const std::vector<int64_t>& windows = config.body.sliding_window;
  return layer < windows.size() ? windows[layer] : 0;
}

std::vector<int32_t> dflash_intervals(const DflashBlocks& blocks, const DrafterConfig& config,
                                      int64_t window) {
  std::vector<int32_t> intervals;
  intervals.reserve(blocks.input_ids.size() * 4);
  const bool causal = window > 0 && config.causal_in_sliding_layers;
  for (size_t n = 0; n < blocks.anchors.size(); ++n) {
    const int64_t anchor = blocks.anchors[n].row;
    const int64_t own = blocks.tokens + static_cast<int64_t>(n) * blocks.block_size;
    for (int64_t s = 0; s < blocks.block_size; ++s) {
      int64_t begin = blocks.begins[n];
      if (window > 0) {
        const int64_t first = config.window_rule == WindowRule::kPerSlot ? anchor + s - (window - 1)
                                                                         : anchor - window;
        begin = std::min(anchor, std::max(begin, first));
      }
      const int64_t own_end = own + (causal ? s + 1 : blocks.block_size);
      for (int64_t bound : {begin, anchor, own, own_end}) {
        intervals.push_back(static_cast<int32_t>(bound));
      }
    }
  }
  return intervals;
}

std::vector<float> dpace_weights(std::span<const float> loss_of_row, const LossConfig& loss,
                                 DflashBlocks& blocks) {
  std::vector<float> weights(blocks.rows.size(), 0.0f);
  const int64_t size = blocks.block_size;
  double sum = 0;
  for (size_t n = 0; n < blocks.anchors.size(); ++n) {
    std::vector<double> confidence(static_cast<size_t>(size), 0.0);  // product up to the slot
    double product = 1.0, suffix = 0.0;
    for (int64_t s = 1; s < size; ++s) {
      const int32_t row = blocks.status[static_cast<int64_t>(n) * size + s];
      if (row < 0) continue;
      product *= (1.0 - loss.dpace_alpha) * std::exp(-static_cast<double>(loss_of_row[row])) +
                 loss.dpace_alpha;
      confidence[s] = product;
    }
    for (int64_t s = size - 1; s >= 1; --s) {
      const int32_t row = blocks.status[static_cast<int64_t>(n) * size + s];
      if (row < 0) continue;
      suffix += confidence[s];
      weights[row] = static_cast<float>(suffix);
      sum += suffix;
    }
  }
  if (loss.denominator == Denominator::kWeights) {
    blocks.weight = sum + loss.denominator_epsilon;
  }
  return weights;
}

StepSums sum_up_dflash(const DflashBlocks& blocks, const DflashOutcome& outcome,
                       std::span<const int32_t> draft_ids) {
  const int64_t size = blocks.block_size;
  const size_t slots = static_cast<size_t>(size - 1);
  StepSums sums;
  sums.weight = blocks.weight;
  sums.tokens = blocks.tokens;
  sums.supervised = blocks.supervised;
  for (auto* values :
       {&sums.position_loss, &sums.position_weight, &sums.position_correct, &sums.position_count}) {
    values->assign(slots, 0.0);
  }
  const auto id_of = [&](int32_t row) { return draft_ids.empty() ? row : draft_ids[row]; };
  for (size_t n = 0; n < blocks.anchors.size(); ++n) {
    int64_t run = 0;
    bool running = true, counted = false;
    for (int64_t s = 1; s < size; ++s) {
      const int32_t row = blocks.status[static_cast<int64_t>(n) * size + s];
      bool right = false;
      if (row != DflashBlocks::kUnsupervised) {
        counted = true;
        sums.position_count[s - 1] += 1;
      }
      if (row >= 0) {
        const int32_t truth =
            blocks.truth[row] >= 0 ? blocks.truth[row] : id_of(outcome.teacher_argmax[row]);
        right = id_of(outcome.argmax[row]) == truth;
        sums.position_correct[s - 1] += right ? 1 : 0;
        sums.position_weight[s - 1] += 1;
        sums.position_loss[s - 1] += outcome.loss[row];
        sums.loss += static_cast<double>(blocks.weights[row]) * outcome.loss[row];
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
