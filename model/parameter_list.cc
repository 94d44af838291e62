#include "model/parameter_list.h"

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace percheron {
namespace {

constexpr double kInitialDeviation = 0.02;

}  // namespace

Parameter* ParameterList::add(Context& context, std::string name,
                              std::initializer_list<int64_t> shape, Training training) {
  auto parameter = std::make_unique<Parameter>();
  parameter->name = std::move(name);
  parameter->trainable = training == Training::kTrained;
  if (status_.ok()) {
    Result<Tensor> value = device_.make_tensor(DType::kF32, shape);
    if (value.ok()) parameter->value = std::move(*value);
    status_ = value.status();
  }
  if (status_.ok() && parameter->trainable) {
    Result<Tensor> gradient = device_.make_tensor(DType::kF32, shape);
    if (gradient.ok()) {
      parameter->gradient = std::move(*gradient);
      device_.ops().fill_zero(context, parameter->gradient.view());
    }
    status_ = gradient.status();
  }
  if (!status_.ok()) status_ = status_.with_context("parameter " + parameter->name);
  parameters_.push_back(std::move(parameter));
  return parameters_.back().get();
}

Status ParameterList::initialise(Context& context, uint64_t seed) {
  // Nothing is kept on a device that only counts, and a billion random numbers take long.
  if (device_.info().id.kind == DeviceKind::kPlanning) return ok_status();
  std::vector<float> values;
  for (const auto& parameter : parameters_) {
    const TensorView view = parameter->value.view();
    values.assign(static_cast<size_t>(view.elements()), 1.0f);
    if (view.rank() == 2) {
      Random random = Random::keyed(seed, parameter->name);
      for (float& value : values) value = static_cast<float>(kInitialDeviation * random.normal());
    }
    device_.copy_bytes(context.stream, view.data(), values.data(), view.bytes());
    PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  }
  return ok_status();
}

ConstTensorView converted(Context& context, ConstTensorView x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const TensorView copy = context.arena.take(dtype, {x.dim(0), x.dim(1)});
  context.device.ops().copy(context, x, copy);
  return copy;
}

DType activation_dtype(const Device& device, DType wanted) {
  return wanted == DType::kBf16 && device.info().native_bf16 ? DType::kBf16 : DType::kF32;
}

}  // namespace percheron
