#pragma once

#include "kernels/cuda/products.h"

namespace percheron::cuda {

/// Matrix products of the emulated device: plain loops in the calling thread, sums in f32.
class HostProducts final : public MatrixProducts {
 public:
  Status multiply(Queue& queue, const MatrixProduct& product) override;
};

}  // namespace percheron::cuda
