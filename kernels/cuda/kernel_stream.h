#pragma once

#include <initializer_list>
#include <utility>

#include "kernels/cuda/queue.h"
#include "kernels/device.h"

namespace percheron::cuda {

/// A stream of a CUDA or emulated device.
class KernelStream : public Stream {
 public:
  explicit KernelStream(void* stream) { queue_.stream = stream; }
  Queue& queue() { return queue_; }
  Status check() override {
    collect_error();
    return take_error();
  }
  uint64_t launches() const override { return queue_.launches; }
  /// What an operation is about to read and write. Emulation ends the process, as for any bug, when
  /// one does not lie in the device's memory: a GPU would fail, and say less.
  virtual void check_operands(std::initializer_list<ConstTensorView>) const {}

 protected:
  /// Hands what a launch complained of to the stream's first error.
  void collect_error() {
    if (!queue_.error.empty()) fail(internal_error(std::exchange(queue_.error, {})));
  }
  /// Around a recording: what failed before it is kept apart from what fails in it, which is
  /// returned.
  void set_errors_apart() {
    collect_error();
    before_recording_ = take_error();
  }
  Status errors_of_recording() {
    collect_error();
    const Status failed = take_error();
    if (!before_recording_.ok()) fail(std::exchange(before_recording_, Status()));
    return failed;
  }

 private:
  Queue queue_;
  Status before_recording_;
};

/// The queue for an operation with these operands; absent ones may be among them.
inline Queue& queue_of(Context& context, std::initializer_list<ConstTensorView> operands) {
  auto& stream = static_cast<KernelStream&>(context.stream);
  stream.check_operands(operands);
  return stream.queue();
}

}  // namespace percheron::cuda
