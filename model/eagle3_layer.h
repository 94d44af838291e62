#pragma once

#include <memory>

#include "kernels/ops.h"
#include "model/drafter.h"
#include "model/mlp_block.h"
#include "model/parameter_list.h"
#include "model/rope.h"

namespace percheron {

/// The one decoder layer of EAGLE-3, run once per step of training-time test: embedding and hidden
/// state, both normalised, side by side into attention; keys and values of all steps in one buffer.
/// Source: algorithms.md 2.1, 2.2.
class Eagle3Layer {
 public:
  /// Keys and values of all L steps: rows [0, T) of step 0, then T x (L - 1) rows, those of one
  /// query side by side (one interval, decisions.md 4). Arena memory of the caller's scope.
  struct KeysValues {
    TensorView keys, values;    // [T + T (L - 1), kv heads * head_dim]
    TensorView dkeys, dvalues;  // same, f32; made by begin_backward()
    int64_t tokens = 0, steps = 0;
  };

  /// Inputs of one step and what its backward pass needs.
  struct Step {
    int64_t index = 0;                                      // k
    TensorView input_ids;                                   // I32 [T]
    TensorView positions;                                   // I32 [T]
    TensorView intervals;                                   // I32 [T, 4]
    TensorView hidden;                                      // [T, H] f32, the step's input
    TensorView embedded, embedded_rms, hidden_rms, normed;  // [T, H], [T], [T], [T, 2 H]
    TensorView qkv, q, q_rms, k_rms;   // rotated queries; means per head if qk_norm
    TensorView attended, log_sum_exp;  // [T, heads * head_dim], [T, heads]
    MlpBlock::Saved mlp;
    TensorView out;  // [T, H] f32
    TensorView own_keys, own_values;  // where the step's go; slices of KeysValues unless given
  };

  /// Declares the layer's parameters ("midlayer.*") in checkpoint order; status() of `list` may be
  /// bad after it.
  Eagle3Layer(Context& context, const DrafterConfig& config, ParameterList& list);
  /// Packs the weights; call once after they have values.
  void build(Context& context, DType dtype);
  void repack(Context& context);

  KeysValues make_keys_values(Context& context, int64_t tokens, int64_t steps) const;
  void begin_backward(Context& context, KeysValues& kv) const;
  /// Runs one step: appends its keys and values to `kv` and sets step.out. `embedding`: [V, H].
  void forward(Context& context, ConstTensorView embedding, const RopeTable& rope, KeysValues& kv,
               Step& step) const;
  /// gradient: [T, H] f32, that of step.out on entry, that of step.hidden on return. Steps in
  /// reverse order.
  void backward(Context& context, const RopeTable& rope, KeysValues& kv, const Step& step,
                TensorView gradient) const;

 private:
  TensorView slice(TensorView all, const KeysValues& kv, int64_t step) const;
  void project(Context& context, const RopeTable& rope, KeysValues& kv, Step& step) const;
  void project_backward(Context& context, const RopeTable& rope, KeysValues& kv, const Step& step,
                        TensorView dq, TensorView dqkv) const;

  DrafterConfig config_;
  int64_t hidden_, heads_, kv_heads_, head_dim_;
  float epsilon_, scale_;
  DType dtype_ = DType::kF32;
  Parameter *hidden_norm_, *input_norm_, *post_norm_, *q_, *k_, *v_, *o_, *gate_, *up_, *down_;
  Parameter *q_norm_ = nullptr, *k_norm_ = nullptr;
  std::unique_ptr<Linear> qkv_proj_, o_proj_;
  std::unique_ptr<MlpBlock> mlp_;
};

}  // namespace percheron
