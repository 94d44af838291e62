#pragma once

#include "kernels/ops.h"
#include "model/parameter.h"

namespace percheron {

/// The second half of a transformer layer: out = x + down(silu(gate n) * up n), n = RMSNorm(x).
class MlpBlock {
 public:
  /// What the backward pass needs; arena memory of the caller's scope.
  struct Saved {
    TensorView input;        // [N, H] f32
    TensorView inverse_rms;  // [N] f32
    TensorView normed;       // [N, H]
    TensorView gate_up;      // [N, 2 I]
    TensorView inner;        // [N, I]
  };

  /// Weights stay owned by the drafter. `dtype`: of packed weights, and of
  /// activations where the device multiplies it.
  MlpBlock(Context& context, Parameter* norm, Parameter* gate, Parameter* up, Parameter* down,
           float epsilon, DType dtype);

  void repack(Context& context);
  /// input: [N, H] f32, kept by `saved`; out: [N, H] f32, other memory.
  void forward(Context& context, TensorView input, Saved& saved, TensorView out) const;
  /// gradient: [N, H] f32, that of the output on entry and that of the input on return. Adds to the
  /// weights' gradients; `listener`, unless null, is told that they are complete.
  void backward(Context& context, const Saved& saved, TensorView gradient,
                GradientListener* listener) const;

 private:
  Parameter* norm_;
  Linear gate_up_, down_;
  float epsilon_;
  DType dtype_;
};

}  // namespace percheron
