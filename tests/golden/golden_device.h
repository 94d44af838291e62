#pragma once

#include <memory>

#include "kernels/device.h"

namespace percheron::golden {

/// The device that golden cases run on, with one stream; bound to the calling thread.
class GoldenDevice {
 public:
  static Result<GoldenDevice> open(DeviceId id) {
    GoldenDevice golden;
    PERCHERON_ASSIGN_OR_RETURN(golden.device_, open_device(id, {.threads = 1}));
    golden.device_->bind_thread();
    golden.stream_ = golden.device_->make_stream();
    golden.arena_ = std::make_unique<Arena>(*golden.device_);
    return golden;
  }

  Context context() { return {*device_, *stream_, *arena_}; }

  /// Copies a contiguous device tensor to host memory.
  template <class T>
  Result<std::vector<T>> to_host(ConstTensorView view) {
    PERCHERON_CHECK(view.contiguous() && sizeof(T) == dtype_bytes(view.dtype()),
                    "a contiguous tensor of this element type is copied");
    std::vector<T> values(static_cast<size_t>(view.elements()));
    device_->copy_bytes(*stream_, values.data(), view.data(), view.bytes());
    PERCHERON_RETURN_IF_ERROR(stream_->wait_idle());
    return values;
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace percheron::golden
