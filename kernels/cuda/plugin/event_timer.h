#pragma once

#include "kernels/cuda/causal_attention.h"

namespace percheron::cuda {

/// Times a queue's work by events in its stream.
class EventTimer final : public QueueTimer {
 public:
  Result<double> time_ms(Queue& queue, const std::function<Status()>& work) override;
};

}  // namespace percheron::cuda
