#pragma once

#include <memory>

#include "kernels/ops.h"
#include "model/drafter.h"
#include "model/mlp_block.h"
#include "model/parameter_list.h"
#include "model/rope.h"

namespace percheron {

/// The one decoder layer of EAGLE-3, run once per step of training-time test:
/// embedding and hidden state, both normalised, side by side into attention;
/// keys and values of all steps in one buffer. Source: Li et al. 2025 (EAGLE-3),
/// SpecForge's draft layer.
class Eagle3Layer {
 public:
  /// Keys and values of all L steps: rows [0, T) of step 0, then A x (L - 1)
  /// rows, those of one query side by side (one interval).
  /// Arena memory of the caller's scope.
  struct KeysValues {
    TensorView keys, values;    // [T + A (L - 1), kv heads * head_dim]
    TensorView dkeys, dvalues;  // same, f32; made by begin_backward()
    int64_t tokens = 0, queries = 0, steps = 0;
  };

  /// Inputs of one step and what its backward pass needs. N rows give keys; A
  /// of them, or all, ask and go on: rows that no loss depends on end with
  /// their keys.
  struct Step {
    int64_t index = 0;           // k
    TensorView input_ids;        // I32 [N]
    TensorView positions;        // I32 [N]
    TensorView hidden;           // [N, H] f32, the step's input
    TensorView query_rows;       // I32 [A], ascending; absent: all
    TensorView query_positions;  // I32 [A]; absent: positions
    TensorView intervals;        // I32 [A, 4]
    TensorView own_keys,
        own_values;  // where the step's go; slices of KeysValues unless given

    TensorView embedded, embedded_rms, hidden_rms,
        normed;               // [N, H], [N], [N], [N, 2 H]
    TensorView query_normed;  // [A, 2 H], normed itself if all rows ask
    TensorView q, rotated_q,
        q_rms;  // [A, heads, D] twice, [A, heads]; means only if qk_norm
    TensorView kv,
        k_rms;                         // [N, 2 kv heads * D] keys first, before norm and rotary
    TensorView attended, log_sum_exp;  // [A, heads * D], [A, heads]
    MlpBlock::Saved mlp;
    TensorView out;  // [A, H] f32
  };

  /// Declares the layer's parameters ("midlayer.*") in checkpoint order;
  /// status() of `list` may be bad after it.
  Eagle3Layer(Context& context, const DrafterConfig& config, ParameterList& list);
  /// Packs the weights as `dtype`, which activations have too where the device multiplies it; call
  /// once after they have values.
  void build(Context& context, DType dtype);
  void repack(Context& context);

  KeysValues make_keys_values(Context& context, int64_t tokens, int64_t queries,
                              int64_t steps) const;
  void begin_backward(Context& context, KeysValues& kv) const;
  /// Runs one step: appends its keys and values to `kv` and sets step.out.
  /// `embedding`: [V, H].
  void forward(Context& context, ConstTensorView embedding, const RopeTable& rope, KeysValues& kv,
               Step& step) const;
  /// gradient: [A, H] f32, of step.out; changed. dhidden: [N, H] f32, of
  /// step.hidden; `gradient` itself where all rows ask. Steps in reverse order. `listener`, unless
  /// null, is told that the layer's gradients are complete: not before the last one, step 0.
  void backward(Context& context, const RopeTable& rope, KeysValues& kv, const Step& step,
                TensorView gradient, TensorView dhidden, GradientListener* listener) const;

 private:
  TensorView slice(TensorView all, const KeysValues& kv, int64_t step) const;
  void choose_queries(Context& context, Step& step, TensorView residual) const;
  void project(Context& context, const RopeTable& rope, KeysValues& kv, Step& step) const;
  TensorView attend_backward(Context& context, const RopeTable& rope, KeysValues& kv,
                             const Step& step, ConstTensorView dresidual,
                             GradientListener* listener) const;
  TensorView project_backward(Context& context, const RopeTable& rope, KeysValues& kv,
                              const Step& step, TensorView dq, ConstTensorView gradient,
                              GradientListener* listener) const;

  DrafterConfig config_;
  int64_t hidden_, heads_, kv_heads_, head_dim_;
  float epsilon_, scale_;
  DType dtype_ = DType::kF32;
  Parameter *hidden_norm_, *input_norm_, *post_norm_, *q_, *k_, *v_, *o_, *gate_, *up_, *down_;
  Parameter *q_norm_ = nullptr, *k_norm_ = nullptr;
  std::unique_ptr<Linear> q_proj_, kv_proj_, o_proj_;
  std::unique_ptr<MlpBlock> mlp_;
};

}  // namespace percheron
