#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/parameter.h"

namespace percheron {

enum class Training { kTrained, kFrozen };

/// The parameters of a drafter in the order of its checkpoints, while they are declared.
class ParameterList {
 public:
  explicit ParameterList(Device& device) : device_(device) {}

  /// Adds a parameter of `shape` with uninitialised value and zero gradient (absent if frozen).
  /// After a failure the views are absent: ask status() before using any.
  Parameter* add(Context& context, std::string name, std::initializer_list<int64_t> shape,
                 Training training = Training::kTrained);
  /// The first failure of add(): kResourceExhausted names the parameter.
  const Status& status() const { return status_; }

  /// Fills every value: norms (one dimension) with 1, matrices from normal(0, 0.02), each a pure
  /// function of `seed` and its name. Source: initializer_range of Hugging Face. Waits for the
  /// copies.
  Status initialise(Context& context, uint64_t seed);

  std::span<const std::unique_ptr<Parameter>> all() const { return parameters_; }

 private:
  Device& device_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  Status status_;
};

/// A view of `values` in device memory, taken from the arena; `values` may go at once.
template <class T>
TensorView upload(Context& context, std::span<const T> values,
                  std::initializer_list<int64_t> shape) {
  const TensorView view = context.arena.take(DTypeOf<T>::value, shape);
  PERCHERON_CHECK(view.elements() == static_cast<int64_t>(values.size()),
                  "the shape must match the values");
  context.device.upload_bytes(context.stream, view.data(), values.data(), view.bytes());
  return view;
}
template <class T>
TensorView upload(Context& context, const std::vector<T>& values,
                  std::initializer_list<int64_t> shape) {
  return upload(context, std::span<const T>(values), shape);
}

/// Copies a contiguous device tensor of element type T to `values`, which must live until the
/// stream is idle.
template <class T>
void download(Context& context, ConstTensorView view, std::vector<T>& values) {
  PERCHERON_CHECK(view.dtype() == DTypeOf<T>::value && view.contiguous(),
                  "a download keeps type and layout");
  values.resize(static_cast<size_t>(view.elements()));
  context.device.copy_bytes(context.stream, values.data(), view.data(), view.bytes());
}

/// As download(), into a vector of its own; waits for the stream.
template <class T>
Result<std::vector<T>> to_host(Context& context, ConstTensorView view) {
  std::vector<T> values;
  download(context, view, values);
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  return values;
}

/// `x` itself if it has `dtype`, else a converted copy from the arena. x: [N, C].
ConstTensorView converted(Context& context, ConstTensorView x, DType dtype);

/// What activations are computed in: bf16 only where the device multiplies it in hardware.
DType activation_dtype(const Device& device, DType wanted);

}  // namespace percheron
