#pragma once

#include <utility>

#include "kernels/cuda/queue.h"
#include "kernels/device.h"

namespace percheron::cuda {

/// A stream of a CUDA or emulated device.
class KernelStream : public Stream {
 public:
  explicit KernelStream(void* stream) { queue_.stream = stream; }
  Queue& queue() { return queue_; }

 protected:
  /// Hands what a launch complained of to the stream's first error.
  void collect_error() {
    if (!queue_.error.empty()) fail(internal_error(std::exchange(queue_.error, {})));
  }

 private:
  Queue queue_;
};

inline Queue& queue_of(Context& context) {
  return static_cast<KernelStream&>(context.stream).queue();
}

}  // namespace percheron::cuda
