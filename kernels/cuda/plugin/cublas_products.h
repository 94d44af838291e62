#pragma once

#include <memory>

#include "base/status.h"
#include "kernels/cuda/products.h"

namespace percheron::cuda {

/// Products by cuBLASLt on the current device; its workspace is none.
Result<std::unique_ptr<MatrixProducts>> make_cublas_products();

}  // namespace percheron::cuda
