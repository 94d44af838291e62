#pragma once

#include <cuda_runtime_api.h>

namespace percheron::cuda {

/// Asks the runtime for a kernel of this build, before any is launched: whether there is code for
/// the current device.
cudaError_t find_probe_kernel();

}  // namespace percheron::cuda
