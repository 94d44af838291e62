#pragma once

#include <memory>

#include "kernels/cuda/plugin/cuda_runtime.h"

namespace percheron::cuda {

/// NVIDIA's runtime, as linked into the plug-in.
std::unique_ptr<Runtime> make_nvidia_runtime();

}  // namespace percheron::cuda
