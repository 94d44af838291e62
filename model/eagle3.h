#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/graph_cache.h"
#include "model/drafter.h"
#include "model/eagle3_layer.h"
#include "model/eagle3_rows.h"
#include "model/frozen_head.h"
#include "model/parameter_list.h"
#include "model/rope.h"

namespace percheron {

/// An EAGLE-3 drafter in training: captured states through fc, then L steps of
/// the one decoder layer, each compared with the target's own distribution over
/// the draft vocabulary; back-propagation through all steps. Source: Li et al.
/// 2025 (EAGLE-3); docs/training.md.
class Eagle3Drafter final : public Drafter {
 public:
  /// kInvalidArgument names what in `config` does not fit `target` or is not
  /// supported.
  static Result<std::unique_ptr<Eagle3Drafter>> make(Context& context, const DrafterConfig& config,
                                                     const TargetParts& target,
                                                     std::vector<int32_t> draft_ids,
                                                     DType compute_dtype, uint64_t seed);

  const DrafterConfig& config() const override { return config_; }
  std::span<const std::unique_ptr<Parameter>> parameters() const override { return list_.all(); }
  std::span<const int32_t> draft_ids() const override { return draft_ids_; }
  Result<StepSums> forward_backward(Context& context, const Features& features,
                                    const LossConfig& loss) override;
  void weights_changed(Context& context) override;

  /// As forward_backward(), with the teacher's logits [T, draft vocabulary]
  /// f32, on the device, given instead of computed from the last layer's
  /// output.
  Result<StepSums> forward_backward_with_teacher(Context& context, const Features& features,
                                                 const LossConfig& loss,
                                                 ConstTensorView teacher_logits);

  /// Rows of one drafting step: n of them leave keys and values, A of these ask and draft.
  struct DraftRows {
    TensorView input_ids, positions;         // I32 [n]
    TensorView query_rows, query_positions;  // I32 [A]; absent: all rows ask
    TensorView intervals;                    // I32 [A, 4], rows of keys and values
    TensorView hidden;                // [n, H] f32: fused states, or what the step before fed on
    TensorView keys, values;          // [S, kv heads * head_dim]: all rows that may be seen
    TensorView own_keys, own_values;  // [n, kv heads * head_dim] within these: of these rows
  };
  DType compute_dtype() const { return dtype_; }
  /// Rotary tables up to `positions`; draft_step() needs them.
  Status reserve_positions(Context& context, int64_t positions) const {
    return rope_.reserve(context, positions);
  }
  /// hidden [n, H] f32 = fc of captured states [n, K H], any float type,
  /// possibly strided.
  void fuse_states(Context& context, ConstTensorView states, TensorView hidden) const;
  /// One step without a backward pass. fed: [A, H] f32, what a next step reads.
  void draft_step(Context& context, const DraftRows& rows, TensorView fed) const;
  /// The greedy draft row after each row of `fed` [R, H]. choice: I32 [R].
  void choose(Context& context, ConstTensorView fed, TensorView choice) const;

 private:
  using Step = Eagle3Layer::Step;
  using KeysValues = Eagle3Layer::KeysValues;

  /// A micro-batch as it is uploaded: what the plan of its rows decides is on the device, so that
  /// the work after it depends on nothing but shapes and addresses.
  struct Inputs {
    int64_t tokens = 0, queries = 0, steps = 0, teachers = 0;  // T, A, L, R
    TensorView states;                                         // [T, slots H], the features' dtype
    TensorView first_ids, first_positions;                     // I32 [T]
    TensorView query_rows;                                     // I32 [A]
    TensorView ids, positions, intervals;                      // I32 [L, A], [L, A], [L A, 4]
    TensorView teacher_rows;                                   // I32 [R]
    TensorView learning_rows, weights;                         // I32 [L, R], f32 [L, R]
    ConstTensorView teacher_logits;                            // given from outside, or absent
  };
  /// The captured states on their way to the layer.
  struct Fused {
    TensorView states;  // [T, K H]
    TensorView normed;  // the same without a norm before fc
    TensorView rms;     // [1 or K, T]: one norm over all states, or one each
    TensorView hidden;  // [T, H] f32
  };
  /// One unrolled forward pass.
  struct Unrolled {
    TensorView last;  // [T, H] of the features' dtype, or absent
    Fused fused;
    KeysValues kv;
    std::vector<Step> steps;
    std::vector<TensorView> fed,
        fed_rms;                        // norm_output: normed outputs [A, H] f32 and their [A]
    std::vector<TensorView> gradients;  // [A, H] f32, of what head and next step read
  };
  /// Results of the loss stage, still on the device.
  struct Results {
    TensorView loss;            // [L, R] f32
    TensorView argmax;          // I32 [L, R]
    TensorView teacher_argmax;  // I32 [1, R]
  };
  /// Teacher rows [begin, end) of the plan, for all steps.
  struct Chunk {
    int64_t begin, end;
    TensorView teacher_logits;  // [end - begin, draft vocabulary] f32
  };

  Eagle3Drafter(Context& context, const DrafterConfig& config, const TargetParts& target,
                std::vector<int32_t> draft_ids, DType dtype);

  Status check(const Features& features, const LossConfig& loss, bool teacher_given) const;
  void fuse(Context& context, ConstTensorView states, Fused& fused) const;
  void fuse_backward(Context& context, const Fused& fused, ConstTensorView gradient) const;
  Inputs upload_inputs(Context& context, const Features& features, const Eagle3Rows& rows) const;
  /// All of a micro-batch's work on the device between its upload and its results.
  void compute(Context& context, const Inputs& in, const LossConfig& loss,
               const Results& results) const;
  void unroll(Context& context, const Inputs& in, Unrolled& run) const;
  void unroll_backward(Context& context, Unrolled& run) const;
  void learn(Context& context, const Inputs& in, const LossConfig& loss, Unrolled& run,
             const Results& results) const;
  void teach(Context& context, const Inputs& in, const Unrolled& run, Chunk& chunk) const;
  void learn_step(Context& context, const Inputs& in, const LossConfig& loss, const Chunk& chunk,
                  int64_t k, Unrolled& run, const Results& results) const;
  void learn_term(Context& context, const LossTerm& term, const Chunk& chunk,
                  ConstTensorView normed, ConstTensorView weights, TensorView argmax,
                  TensorView teacher_argmax, TensorView loss, Write write,
                  TensorView dnormed) const;
  Result<Eagle3Outcome> read_back(Context& context, const Results& results) const;

  DrafterConfig config_;
  TargetParts target_;
  std::vector<int32_t> draft_ids_, to_draft_;
  DType dtype_;
  float epsilon_;
  ParameterList list_;
  Parameter* fc_ = nullptr;
  std::vector<Parameter*> fc_norms_;  // one over all states (norm_before_fc),
                                      // one per state (fc_norm), or none
  std::unique_ptr<Eagle3Layer> layer_;
  Parameter *norm_ = nullptr, *head_ = nullptr;
  std::unique_ptr<Linear> fc_proj_, head_proj_;
  std::unique_ptr<FrozenHead> teacher_head_;
  mutable RopeTable rope_;
  GraphCache graphs_;
};

}  // namespace percheron
