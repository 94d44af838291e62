#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops.h"

namespace percheron {

/// One trained or frozen tensor of a drafter.
struct Parameter {
  std::string name;  // as in our own checkpoints: "midlayer.self_attn.q_proj.weight"
  Tensor value;      // f32 master copy, [out, in] or [C]
  Tensor gradient;   // f32 sum over the step's rows, same shape; absent if frozen
  bool trainable = true;
};

/// Told during a backward pass which gradients are complete, so that they can be summed over the
/// trainers meanwhile. On the thread that runs the pass.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// Asked when a pass begins: whether to be told amid this one. One that tells nobody may be
  /// launched as a whole.
  virtual bool listens() { return true; }
  /// All that the pass adds to this gradient is in the stream. Once a pass at most for a trained
  /// parameter, from the deepest ones on; what was not told is complete when the pass ends.
  virtual void complete(Context& context, const Parameter& parameter) = 0;
};
/// Tells `listener`, unless it is null, of those that are trained.
inline void tell_complete(Context& context, GradientListener* listener,
                          std::initializer_list<const Parameter*> parameters) {
  if (listener == nullptr) return;
  for (const Parameter* parameter : parameters) {
    if (parameter->trainable) listener->complete(context, *parameter);
  }
}

/// Which products of a weight are wanted.
enum class Products {
  kForward,             // y = x W^T
  kForwardAndBackward,  // dx = dy W too: costs a second packed copy
};

/// The weight of a linear layer: one or more parameters stacked by rows into one product (q, k, v),
/// with the packed copies that products read. repack() after the masters change.
class Linear {
 public:
  /// `parameters` stay owned by the drafter and must outlive this. Without memory for the packed
  /// copies the stream keeps kResourceExhausted.
  Linear(Context& context, std::vector<Parameter*> parameters, DType dtype, Products products);

  void repack(Context& context);
  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }

  /// y (+)= x W^T.
  void forward(Context& context, ConstTensorView x, Write write, TensorView y) const;
  /// dx (+)= dy W, unless dx is absent; then gradients += dy^T x where trainable. `listener`,
  /// unless null, is told that they are complete.
  void backward(Context& context, ConstTensorView dy, ConstTensorView x, Write write, TensorView dx,
                GradientListener* listener = nullptr) const;

 private:
  std::vector<Parameter*> parameters_;
  int64_t out_features_ = 0, in_features_ = 0;
  std::unique_ptr<PackedMatrix> forward_, backward_;  // of the stack; backward_ null if not wanted
};

}  // namespace percheron
