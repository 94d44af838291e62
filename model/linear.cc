#include "base/check.h"
#include "model/parameter.h"

namespace percheron {

Linear::Linear(Context& context, std::vector<Parameter*> parameters, DType dtype, Products products)
    : parameters_(std::move(parameters)) {
  PERCHERON_CHECK(!parameters_.empty(), "a linear layer needs at least one parameter");
  in_features_ = parameters_[0]->value.view().dim(1);
  for (const Parameter* parameter : parameters_) {
    PERCHERON_CHECK(parameter->value.view().dim(1) == in_features_,
                    "stacked weights must have the same number of columns");
    out_features_ += parameter->value.view().dim(0);
  }
  const Ops& ops = context.device.ops();
  forward_ = ops.make_packed(context, out_features_, in_features_, dtype, MatrixUse::kForward);
  if (products == Products::kForwardAndBackward) {
    backward_ = ops.make_packed(context, out_features_, in_features_, dtype, MatrixUse::kBackward);
  }
  repack(context);
}

void Linear::repack(Context& context) {
  const Ops& ops = context.device.ops();
  const Arena::Scope scope(context.arena);
  ConstTensorView stacked = parameters_[0]->value.view();
  if (parameters_.size() > 1) {
    const TensorView rows = context.arena.take(DType::kF32, {out_features_, in_features_});
    int64_t begin = 0;
    for (const Parameter* parameter : parameters_) {
      const int64_t end = begin + parameter->value.view().dim(0);
      ops.copy(context, parameter->value.view(), rows.rows(begin, end));
      begin = end;
    }
    stacked = rows;
  }
  ops.pack(context, stacked, *forward_);
  if (backward_ != nullptr) ops.pack(context, stacked, *backward_);
}

void Linear::forward(Context& context, ConstTensorView x, Write write, TensorView y) const {
  context.device.ops().linear(context, x, *forward_, ConstTensorView(), write, y);
}

void Linear::backward(Context& context, ConstTensorView dy, ConstTensorView x, Write write,
                      TensorView dx, GradientListener* listener) const {
  const Ops& ops = context.device.ops();
  if (dx.present()) {
    PERCHERON_CHECK(backward_ != nullptr, "this linear layer was made without a backward layout");
    ops.linear_backward_input(context, dy, *backward_, write, dx);
  }
  int64_t begin = 0;
  for (const Parameter* parameter : parameters_) {
    const int64_t end = begin + parameter->value.view().dim(0);
    if (parameter->trainable) {
      ops.linear_backward_weight(context, dy.columns(begin, end), x, parameter->gradient.view());
      tell_complete(context, listener, {parameter});
    }
    begin = end;
  }
}

}  // namespace percheron
