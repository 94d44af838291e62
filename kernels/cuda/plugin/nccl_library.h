#pragma once

#include <memory>

#include "base/status.h"
#include "kernels/cuda/nccl_calls.h"

namespace percheron::cuda {

/// Opens libnccl.so.2, which stays loaded. kNotFound says in one line that it is missing or what it
/// lacks.
Result<std::shared_ptr<NcclCalls>> open_nccl();

}  // namespace percheron::cuda
