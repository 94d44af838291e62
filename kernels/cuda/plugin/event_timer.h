#pragma once

#include "kernels/cuda/causal_attention.h"
#include "kernels/cuda/plugin/cuda_card.h"

namespace percheron::cuda {

/// Times a queue's work by events in its stream.
class EventTimer final : public QueueTimer {
 public:
  /// `card` is borrowed.
  explicit EventTimer(CudaCard& card) : card_(card) {}
  Result<double> time_ms(Queue& queue, const std::function<Status()>& work) override;

 private:
  CudaCard& card_;
};

}  // namespace percheron::cuda
