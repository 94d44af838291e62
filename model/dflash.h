#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/graph_cache.h"
#include "model/dflash_blocks.h"
#include "model/dflash_layer.h"
#include "model/drafter.h"
#include "model/frozen_head.h"
#include "model/parameter_list.h"
#include "model/rope.h"

namespace percheron {

/// A DFlash drafter in training: blocks of one clean token and masks, drafted at once over the
/// fused captured states, compared with the data's tokens or the target's distribution through the
/// target's frozen head. Source: arXiv 2602.06036; docs/training.md, "DFlash: blocks".
class DflashDrafter final : public Drafter {
 public:
  /// kInvalidArgument names what in `config` does not fit `target` or is not supported.
  static Result<std::unique_ptr<DflashDrafter>> make(Context& context, const DrafterConfig& config,
                                                     const TargetParts& target,
                                                     std::vector<int32_t> draft_ids,
                                                     DType compute_dtype, uint64_t seed);

  const DrafterConfig& config() const override { return config_; }
  std::span<const std::unique_ptr<Parameter>> parameters() const override { return list_.all(); }
  std::span<const int32_t> draft_ids() const override { return draft_ids_; }
  Result<StepSums> forward_backward(Context& context, const Features& features,
                                    const LossConfig& loss) override;
  void weights_changed(Context& context) override;

  /// As forward_backward(), with the anchors given instead of drawn.
  Result<StepSums> forward_backward_at(Context& context, const Features& features,
                                       const LossConfig& loss, std::vector<DflashAnchor> anchors);

  DType compute_dtype() const { return dtype_; }
  /// Rotary tables up to `positions`; drafting needs them.
  Status reserve_positions(Context& context, int64_t positions) const {
    return rope_.reserve(context, positions);
  }
  const RopeTable& rope() const { return rope_; }
  std::span<const std::unique_ptr<DflashLayer>> layers() const { return layers_; }
  /// fused: [n, H] of compute_dtype(), from captured states [n, K H], possibly strided.
  void fuse_states(Context& context, ConstTensorView states, TensorView fused) const;
  /// x: [n, H] f32, the embeddings of ids I32 [n].
  void embed(Context& context, ConstTensorView ids, TensorView x) const;
  /// The greedy draft row of each row of x [R, H] f32 after the last layer. choice: I32 [R].
  void choose(Context& context, ConstTensorView x, TensorView choice) const;

 private:
  /// A micro-batch as it is uploaded: what the plan of its blocks decides is on the device, so that
  /// the work after it depends on nothing but shapes and addresses.
  struct Inputs {
    int64_t tokens = 0, queries = 0, trained = 0;    // T, Q, R
    TensorView states;                               // [T, slots H], the features' dtype
    TensorView ids;                                  // I32 [Q]
    TensorView key_positions;                        // I32 [T + Q], the queries' last
    std::vector<TensorView> intervals;               // I32 [Q, 4], per layer
    TensorView rows, labels, teacher_rows, weights;  // I32 [R], and f32 [R]
  };
  struct Run {
    TensorView last;              // [T, H] of the features' dtype, or absent
    TensorView states;            // [T, K H]
    TensorView fused, fused_rms;  // [T, H] f32 before hidden_norm, [T]
    DflashLayer::Shared shared;
    std::vector<DflashLayer::Saved> layers;
    TensorView out;       // [Q, H] f32 after the last layer
    TensorView gradient;  // [Q, H] f32
  };
  /// Trained slots [begin, end) and what the head sees and says of them.
  struct Chunk {
    int64_t begin, end;
    TensorView rows;                          // I32 [R]
    TensorView outputs, normed, inverse_rms;  // [R, H] f32, [R, H], [R]
  };
  struct Results {
    TensorView loss, argmax, teacher_argmax;  // [R] f32, I32 [R], I32 [R]
  };

  DflashDrafter(Context& context, const DrafterConfig& config, const TargetParts& target,
                std::vector<int32_t> draft_ids, DType dtype);

  Status check(const Features& features, const LossConfig& loss) const;
  void fuse(Context& context, ConstTensorView states, Run& run) const;
  void fuse_backward(Context& context, const Run& run) const;
  Inputs upload_inputs(Context& context, const Features& features,
                       const DflashBlocks& blocks) const;
  Run run_forward(Context& context, const Inputs& in) const;
  void run_layers(Context& context, const Inputs& in, Run& run) const;
  void run_layers_backward(Context& context, Run& run) const;
  /// Only supervised slots reach the head, in chunks of rows.
  void learn(Context& context, const Inputs& in, const LossConfig& loss, Gradient gradient,
             Run& run, const Results& results) const;
  void learn_chunk(Context& context, const Inputs& in, const LossConfig& loss, Gradient gradient,
                   Chunk chunk, Run& run, const Results& results) const;
  void compare(Context& context, const Inputs& in, const LossConfig& loss, Gradient gradient,
               const Chunk& chunk, const Run& run, const Results& results,
               TensorView dnormed) const;
  /// D-PACE's weights follow from the losses of whole blocks, which a pass without gradients gives.
  Status weigh(Context& context, const LossConfig& loss, DflashBlocks& blocks, const Inputs& in,
               const Results& results) const;

  DrafterConfig config_;
  TargetParts target_;
  std::vector<int32_t> draft_ids_, to_draft_;
  DType dtype_;
  float epsilon_;
  ParameterList list_;
  Parameter *fc_, *hidden_norm_, *norm_;
  std::vector<std::unique_ptr<DflashLayer>> layers_;
  std::unique_ptr<Linear> fc_proj_;
  std::unique_ptr<FrozenHead> head_;
  mutable RopeTable rope_;
  GraphCache graphs_;
};

}  // namespace percheron
