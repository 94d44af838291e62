#include "kernels/cuda/host_products.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/emulator/work_queue.h"

namespace percheron::cuda {
namespace {

/// Sums run over this many products before they are added up: shorter sums lose fewer bits.
constexpr int64_t kDepthBlock = 64;
/// Rows of c that share a pass over b.
constexpr int64_t kRowBlock = 4;

float load(const void* data, DType dtype, int64_t i) {
  return dtype == DType::kF32 ? static_cast<const float*>(data)[i]
                              : float_from_bf16(static_cast<const uint16_t*>(data)[i]);
}

/// op(x) [rows, columns] as row-major f32.
std::vector<float> unfold(const MatrixProduct::Operand& x, DType dtype, int64_t rows,
                          int64_t columns) {
  std::vector<float> out(static_cast<size_t>(rows * columns));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t at = x.transposed ? c * x.row_stride + r : r * x.row_stride + c;
      out[static_cast<size_t>(r * columns + c)] = load(x.data, dtype, at);
    }
  }
  return out;
}

/// block[r] = a[r] b over the depth [begin, end), for `rows` rows.
void multiply_block(const float* a, const float* b, int64_t k, int64_t n, int64_t rows,
                    int64_t begin, int64_t end, float* block) {
  std::fill_n(block, rows * n, 0.f);
  for (int64_t l = begin; l < end; ++l) {
    const float* b_row = b + l * n;
    for (int64_t r = 0; r < rows; ++r) {
      const float factor = a[r * k + l];
      float* sum = block + r * n;
      for (int64_t j = 0; j < n; ++j) sum[j] += factor * b_row[j];
    }
  }
}

void multiply_now(const MatrixProduct& p) {
  const std::vector<float> a = unfold(p.a, p.input_dtype, p.m, p.k);
  const std::vector<float> b = unfold(p.b, p.input_dtype, p.k, p.n);
  const auto block_size = static_cast<size_t>(kRowBlock * p.n);
  std::vector<float> block(block_size), total(block_size);
  for (int64_t row = 0; row < p.m; row += kRowBlock) {
    const int64_t rows = std::min(kRowBlock, p.m - row);
    std::fill(total.begin(), total.end(), 0.f);
    for (int64_t begin = 0; begin < p.k; begin += kDepthBlock) {
      multiply_block(a.data() + row * p.k, b.data(), p.k, p.n, rows, begin,
                     std::min(p.k, begin + kDepthBlock), block.data());
      for (int64_t i = 0; i < rows * p.n; ++i) {
        total[static_cast<size_t>(i)] += block[static_cast<size_t>(i)];
      }
    }
    for (int64_t i = 0; i < rows * p.n; ++i) {
      const int64_t at = (row + i / p.n) * p.c_row_stride + i % p.n;
      float value = p.alpha * total[static_cast<size_t>(i)];
      if (p.beta != 0) value += p.beta * load(p.c, p.c_dtype, at);
      if (p.c_dtype == DType::kF32) {
        static_cast<float*>(p.c)[at] = value;
      } else {
        static_cast<uint16_t*>(p.c)[at] = bf16_from_float(value);
      }
    }
  }
}

}  // namespace

Status HostProducts::multiply(Queue& queue, const MatrixProduct& product) {
  if (queue.stream == nullptr) return ok_status();
  static_cast<emulator::WorkQueue*>(queue.stream)->add([product] {
    multiply_now(product);
    return ok_status();
  });
  return ok_status();
}

}  // namespace percheron::cuda
