#include "kernels/cuda/plugin/cublas_products.h"

#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace percheron::cuda {
namespace {

/// The rows for which an algorithm is chosen.
constexpr uint64_t kUsualRows = 2048;
/// More than a run has different products; past it, algorithms are chosen anew each time.
constexpr size_t kAlgorithmsMax = 4096;
constexpr uint64_t kAlignmentMax = 256;

Status lt_status(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return ok_status();
  return internal_error(std::string(what) + ": " + cublasLtGetStatusString(status));
}

cudaDataType_t data_type(DType dtype) { return dtype == DType::kBf16 ? CUDA_R_16BF : CUDA_R_32F; }

/// What cuBLASLt's handles are destroyed by.
struct Destroy {
  void operator()(cublasLtHandle_t x) const { (void)cublasLtDestroy(x); }
  void operator()(cublasLtMatmulDesc_t x) const { (void)cublasLtMatmulDescDestroy(x); }
  void operator()(cublasLtMatrixLayout_t x) const { (void)cublasLtMatrixLayoutDestroy(x); }
  void operator()(cublasLtMatmulPreference_t x) const { (void)cublasLtMatmulPreferenceDestroy(x); }
};
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

using Layout = Owned<cublasLtMatrixLayout_t>;

/// A row-major [rows, columns] is a column-major [columns, rows].
Result<Layout> make_layout(DType dtype, int64_t rows, int64_t columns, int64_t row_stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  PERCHERON_RETURN_IF_ERROR(lt_status(
      cublasLtMatrixLayoutCreate(&layout, data_type(dtype), static_cast<uint64_t>(columns),
                                 static_cast<uint64_t>(rows),
                                 // One row may have any stride, but not too small a one.
                                 std::max(row_stride, columns)),
      "cublasLtMatrixLayoutCreate"));
  return Layout(layout);
}

/// The largest power of two that divides the address and the rows' distance, in bytes.
uint32_t alignment_of(const void* data, int64_t row_stride, DType dtype) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(data) |
                        (static_cast<uint64_t>(row_stride) * dtype_bytes(dtype)) | kAlignmentMax;
  return 1u << std::countr_zero(bits);
}

/// What an algorithm is chosen by. Not the number of rows m, so that a row's bits do not depend on
/// it; and only the size class of k, which is the number of rows in gradients of weights.
struct ProductKey {
  int64_t n;
  uint64_t k_class;
  bool a_transposed, b_transposed;
  DType input_dtype, c_dtype;
  uint32_t a_alignment, b_alignment, c_alignment;

  auto operator<=>(const ProductKey&) const = default;
};

ProductKey key_of(const MatrixProduct& p) {
  return {p.n,
          std::bit_ceil(static_cast<uint64_t>(p.k)),
          p.a.transposed,
          p.b.transposed,
          p.input_dtype,
          p.c_dtype,
          alignment_of(p.a.data, p.a.row_stride, p.input_dtype),
          alignment_of(p.b.data, p.b.row_stride, p.input_dtype),
          alignment_of(p.c, p.c_row_stride, p.c_dtype)};
}

/// Column-major c^T = op(b)^T op(a)^T: the operands change places.
struct Problem {
  Owned<cublasLtMatmulDesc_t> operation;
  Layout b, a, c;
};

Result<Problem> make_problem(const MatrixProduct& p) {
  Problem problem;
  cublasLtMatmulDesc_t operation = nullptr;
  PERCHERON_RETURN_IF_ERROR(lt_status(
      cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDesc"));
  problem.operation.reset(operation);
  const cublasOperation_t first = p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  PERCHERON_RETURN_IF_ERROR(lt_status(
      cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first),
      "CUBLASLT_MATMUL_DESC_TRANSA"));
  PERCHERON_RETURN_IF_ERROR(
      lt_status(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                               sizeof second),
                "CUBLASLT_MATMUL_DESC_TRANSB"));
  PERCHERON_ASSIGN_OR_RETURN(problem.b, make_layout(p.input_dtype, p.b.transposed ? p.n : p.k,
                                                    p.b.transposed ? p.k : p.n, p.b.row_stride));
  PERCHERON_ASSIGN_OR_RETURN(problem.a, make_layout(p.input_dtype, p.a.transposed ? p.k : p.m,
                                                    p.a.transposed ? p.m : p.k, p.a.row_stride));
  PERCHERON_ASSIGN_OR_RETURN(problem.c, make_layout(p.c_dtype, p.m, p.n, p.c_row_stride));
  return problem;
}

/// No workspace and no sums split among blocks, whose order would depend on the shape.
Result<Owned<cublasLtMatmulPreference_t>> make_preference(const ProductKey& key) {
  cublasLtMatmulPreference_t preference = nullptr;
  PERCHERON_RETURN_IF_ERROR(
      lt_status(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreference"));
  Owned<cublasLtMatmulPreference_t> owned(preference);
  const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  const struct {
    cublasLtMatmulPreferenceAttributes_t name;
    uint32_t value;
  } attributes[] = {{CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, no_reduction},
                    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_alignment},
                    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment},
                    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_alignment},
                    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.c_alignment}};
  for (const auto& [name, value] : attributes) {
    PERCHERON_RETURN_IF_ERROR(
        lt_status(cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof value),
                  "cublasLtMatmulPreferenceSetAttribute"));
  }
  return owned;
}

class CublasProducts final : public MatrixProducts {
 public:
  explicit CublasProducts(Owned<cublasLtHandle_t> handle) : handle_(std::move(handle)) {}

  Status multiply(Queue& queue, const MatrixProduct& p) override {
    PERCHERON_ASSIGN_OR_RETURN(const Problem problem, make_problem(p));
    PERCHERON_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t algorithm, algorithm_for(p));
    return lt_status(cublasLtMatmul(handle_.get(), problem.operation.get(), &p.alpha, p.b.data,
                                    problem.b.get(), p.a.data, problem.a.get(), &p.beta, p.c,
                                    problem.c.get(), p.c, problem.c.get(), &algorithm, nullptr, 0,
                                    static_cast<cudaStream_t>(queue.stream)),
                     "a matrix product by cuBLASLt");
  }

 private:
  Result<cublasLtMatmulAlgo_t> algorithm_for(const MatrixProduct& p) {
    const ProductKey key = key_of(p);
    const std::lock_guard lock(mutex_);
    const auto known = algorithms_.find(key);
    if (known != algorithms_.end()) return known->second;
    PERCHERON_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t chosen, choose(p, key));
    if (algorithms_.size() < kAlgorithmsMax) algorithms_.emplace(key, chosen);
    return chosen;
  }

  /// For the usual shape of the key: strides of a transposed operand must hold its rows too.
  Result<cublasLtMatmulAlgo_t> choose(const MatrixProduct& p, const ProductKey& key) {
    MatrixProduct usual = p;
    usual.m = static_cast<int64_t>(kUsualRows);
    usual.k = static_cast<int64_t>(key.k_class);
    PERCHERON_ASSIGN_OR_RETURN(const Problem problem, make_problem(usual));
    PERCHERON_ASSIGN_OR_RETURN(const Owned<cublasLtMatmulPreference_t> preference,
                               make_preference(key));
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    PERCHERON_RETURN_IF_ERROR(lt_status(
        cublasLtMatmulAlgoGetHeuristic(handle_.get(), problem.operation.get(), problem.b.get(),
                                       problem.a.get(), problem.c.get(), problem.c.get(),
                                       preference.get(), 1, &result, &found),
        "cublasLtMatmulAlgoGetHeuristic"));
    if (found == 0) return internal_error("cuBLASLt has no algorithm for a matrix product");
    return result.algo;
  }

  Owned<cublasLtHandle_t> handle_;
  std::mutex mutex_;
  std::map<ProductKey, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace

Result<std::unique_ptr<MatrixProducts>> make_cublas_products() {
  cublasLtHandle_t handle = nullptr;
  PERCHERON_RETURN_IF_ERROR(lt_status(cublasLtCreate(&handle), "cublasLtCreate"));
  return std::unique_ptr<MatrixProducts>(
      std::make_unique<CublasProducts>(Owned<cublasLtHandle_t>(handle)));
}

}  // namespace percheron::cuda
