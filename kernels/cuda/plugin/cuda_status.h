#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/status.h"

namespace percheron::cuda {

/// Ok, or what CUDA says about `what`: kResourceExhausted for memory, else kInternal.
inline Status cuda_status(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return ok_status();
  (void)cudaGetLastError();  // A failure that is told here must not be found by the next launch.
  const std::string message =
      what + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
  return error == cudaErrorMemoryAllocation ? resource_exhausted(message) : internal_error(message);
}

}  // namespace percheron::cuda
