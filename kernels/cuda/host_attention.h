#pragma once

#include "kernels/cuda/attention_library.h"

namespace percheron::cuda {

/// Causal attention of the emulated device: plain loops as the queue's work, sums in double. It takes
/// the shapes that cuDNN takes. A queue without a stream only plans.
class HostAttention final : public AttentionLibrary {
 public:
  std::string name() const override { return "plain loops in cuDNN's place"; }
  Result<AttentionPlan> plan(const PackedShape& shape) override;
  Status run(Queue& queue, const PackedShape& shape, const PackedOperands& operands) override;
};

}  // namespace percheron::cuda
