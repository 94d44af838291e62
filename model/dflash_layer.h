#pragma once

#include <memory>

#include "kernels/ops.h"
#include "model/drafter.h"
#include "model/mlp_block.h"
#include "model/parameter_list.h"
#include "model/rope.h"

namespace percheron {

/// One decoder layer of a DFlash drafter: queries from block rows only; keys and values from the
/// fused context, as it is, and from the block rows. Source: z-lab's dflash/model.py.
class DflashLayer {
 public:
  /// What does not change from layer to layer.
  struct Shared {
    TensorView context;                         // [T, H] fused context
    TensorView key_positions, query_positions;  // I32 [T + Q], [Q]
    TensorView dcontext;                        // [T, H] f32, summed over layers
  };
  /// What the backward pass needs; arena memory of the caller's scope.
  struct Saved {
    TensorView input, normed, input_rms;  // [Q, H] f32, [Q, H], [Q]
    TensorView q, rotated_q, q_rms;       // [Q, heads, D] twice, [Q, heads]
    TensorView kv, rotated_k,
        k_rms;  // [T + Q, 2 kv heads * D] keys first, [T + Q, kv heads, D], [.., kv heads]
    TensorView intervals;              // I32 [Q, 4]
    TensorView attended, log_sum_exp;  // [Q, heads * D], [Q, heads]
    MlpBlock::Saved mlp;
  };

  /// Declares the layer's parameters ("layers.INDEX.*") in checkpoint order.
  DflashLayer(Context& context, const DrafterConfig& config, int64_t index, ParameterList& list);
  /// Packs the weights as `dtype`, which activations have too where the device multiplies it; call
  /// once after they have values.
  void build(Context& context, DType dtype);
  void repack(Context& context);

  /// input: [Q, H] f32, kept by `saved`; saved.intervals is set by the caller. out: [Q, H] f32.
  void forward(Context& context, const RopeTable& rope, const Shared& shared, TensorView input,
               Saved& saved, TensorView out) const;
  /// gradient: [Q, H] f32, of the output on entry, of the input on return. `listener`, unless null,
  /// is told that the layer's gradients are complete, each as soon as it is.
  void backward(Context& context, const RopeTable& rope, const Shared& shared, const Saved& saved,
                TensorView gradient, GradientListener* listener) const;

  /// Rows of a block that is drafted over cached keys and values.
  struct CachedRows {
    TensorView positions;             // I32 [Q]
    TensorView intervals;             // I32 [Q, 4], rows of keys and values
    TensorView keys, values;          // [S, kv heads * head_dim]: all rows that may be seen
    TensorView own_keys, own_values;  // [Q, kv heads * head_dim] within these: those of the block
  };
  /// Keys and values [n, kv heads * head_dim] of fused context rows [n, H]. positions: I32 [n].
  void append(Context& context, const RopeTable& rope, ConstTensorView rows,
              ConstTensorView positions, TensorView keys, TensorView values) const;
  /// The layer without a backward pass. x: [Q, H] f32, replaced by the layer's output.
  void draft(Context& context, const RopeTable& rope, const CachedRows& rows, TensorView x) const;

 private:
  int64_t hidden_, heads_, kv_heads_, head_dim_;
  bool qk_norm_;
  float epsilon_, scale_;
  DType dtype_ = DType::kF32;
  Parameter *input_norm_, *post_norm_, *q_, *k_, *v_, *o_, *gate_, *up_, *down_;
  Parameter *q_norm_ = nullptr, *k_norm_ = nullptr;
  std::unique_ptr<Linear> q_proj_, kv_proj_, o_proj_;
  std::unique_ptr<MlpBlock> mlp_;
};

}  // namespace percheron
