#include "model/mlp_block.h"

#include "model/parameter_list.h"

namespace percheron {

MlpBlock::MlpBlock(Context& context, Parameter* norm, Parameter* gate, Parameter* up,
                   Parameter* down, float epsilon, DType dtype)
    : norm_(norm),
      gate_up_(context, {gate, up}, dtype, Products::kForwardAndBackward),
      down_(context, {down}, dtype, Products::kForwardAndBackward),
      epsilon_(epsilon),
      dtype_(activation_dtype(context.device, dtype)) {}

void MlpBlock::repack(Context& context) {
  gate_up_.repack(context);
  down_.repack(context);
}

void MlpBlock::forward(Context& context, TensorView input, Saved& saved, TensorView out) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const int64_t rows = input.dim(0), hidden = input.dim(1), inner = down_.in_features();
  saved.input = input;
  saved.inverse_rms = arena.take(DType::kF32, {rows});
  saved.normed = arena.take(dtype_, {rows, hidden});
  saved.gate_up = arena.take(dtype_, {rows, 2 * inner});
  saved.inner = arena.take(dtype_, {rows, inner});
  ops.rms_norm(context, input, norm_->value, epsilon_, saved.normed, saved.inverse_rms);
  gate_up_.forward(context, saved.normed, Write::kOverwrite, saved.gate_up);
  ops.swiglu(context, saved.gate_up, saved.inner);
  ops.copy(context, input, out);
  down_.forward(context, saved.inner, Write::kAdd, out);
}

void MlpBlock::backward(Context& context, const Saved& saved, TensorView gradient,
                        GradientListener* listener) const {
  const Ops& ops = context.device.ops();
  Arena& arena = context.arena;
  const Arena::Scope scope(arena);
  const int64_t rows = gradient.dim(0), inner = down_.in_features();
  const ConstTensorView dout = converted(context, gradient, dtype_);
  const TensorView dinner = arena.take(dtype_, {rows, inner});
  down_.backward(context, dout, saved.inner, Write::kOverwrite, dinner, listener);
  const TensorView dgate_up = arena.take(dtype_, {rows, 2 * inner});
  ops.swiglu_backward(context, dinner, saved.gate_up, dgate_up);
  const TensorView dnormed = arena.take(dtype_, {rows, gradient.dim(1)});
  gate_up_.backward(context, dgate_up, saved.normed, Write::kOverwrite, dnormed, listener);
  ops.rms_norm_backward(context, dnormed, saved.input, norm_->value, saved.inverse_rms, Write::kAdd,
                        gradient, norm_->gradient);
  tell_complete(context, listener, {norm_});
}

}  // namespace percheron
