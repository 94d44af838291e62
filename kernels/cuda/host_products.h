#pragma once

#include "kernels/cuda/products.h"

namespace percheron::cuda {

/// Matrix products of the emulated device: plain loops in the thread that runs the queue's work,
/// sums in f32. Nothing for a queue that only plans.
class HostProducts final : public MatrixProducts {
 public:
  Status multiply(Queue& queue, const MatrixProduct& product) override;
};

}  // namespace percheron::cuda
