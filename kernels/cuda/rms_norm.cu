// Root mean square normalisation of rows, or of each head of a row: a warp per row and head.

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"

namespace percheron::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpThreads;

__device__ inline int64_t warp_index() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpThreads;
}
__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % kWarpThreads; }

__global__ void rms_norm_kernel(ConstRows x, const float* weight, float epsilon, Rows out,
                                float* inverse_rms) {
  const int64_t part = warp_index();
  if (part >= x.rows * x.heads) return;
  const int64_t source = row_offset(x, part / x.heads, part % x.heads);
  const int64_t target = row_offset(out, part / x.heads, part % x.heads);
  float squares = 0;
  for (int64_t i = lane_index(); i < x.columns; i += kWarpThreads) {
    const float value = load(x, source + i);
    squares += value * value;
  }
  const float mean = warp_sum(squares) / static_cast<float>(x.columns);
  const float inverse = 1.f / sqrtf(mean + epsilon);
  for (int64_t i = lane_index(); i < x.columns; i += kWarpThreads) {
    const float unit = rounded_to(out.dtype, load(x, source + i) * inverse);
    store(out, target + i, unit * weight[i]);
  }
  if (inverse_rms != nullptr && lane_index() == 0) inverse_rms[part] = inverse;
}

/// dx (+)= inverse_rms (w dy - unit mean(w dy unit)). A warp takes `block_rows` rows in order and
/// sums dy unit over them in its row of dweight_partial.
__global__ void rms_norm_backward_kernel(RmsNormBackward a, int64_t block_rows) {
  const int64_t columns = a.x.columns, begin = warp_index() * block_rows;
  if (begin >= a.x.rows) return;
  const int64_t end = begin + block_rows < a.x.rows ? begin + block_rows : a.x.rows;
  float* partial = a.dweight == nullptr ? nullptr : a.dweight_partial + warp_index() * columns;
  for (int64_t part = begin * a.x.heads; part < end * a.x.heads; ++part) {
    const int64_t row = part / a.x.heads, head = part % a.x.heads;
    const int64_t x = row_offset(a.x, row, head), dy = row_offset(a.dy, row, head);
    const int64_t dx = row_offset(a.dx, row, head);
    const float inverse = a.inverse_rms[part];
    float dot = 0;
    for (int64_t i = lane_index(); i < columns; i += kWarpThreads) {
      const float dy_unit = load(a.dy, dy + i) * (load(a.x, x + i) * inverse);
      dot += dy_unit * a.weight[i];
      if (partial != nullptr) {
        partial[i] = part == begin * a.x.heads ? dy_unit : partial[i] + dy_unit;
      }
    }
    const float mean = warp_sum(dot) / static_cast<float>(columns);
    for (int64_t i = lane_index(); i < columns; i += kWarpThreads) {
      const float unit = load(a.x, x + i) * inverse;
      float d = (load(a.dy, dy + i) * a.weight[i] - unit * mean) * inverse;
      if (a.write == Write::kAdd) d += load(a.dx, dx + i);
      store(a.dx, dx + i, d);
    }
  }
}

__global__ void add_partials_kernel(const float* partial, int64_t count, int64_t columns,
                                    float* sum) {
  for (int64_t i = first_element(); i < columns; i += element_step()) {
    float total = 0;
    for (int64_t block = 0; block < count; ++block) total += partial[block * columns + i];
    sum[i] += total;
  }
}

}  // namespace

void rms_norm(Queue& queue, const ConstRows& x, const float* weight, float epsilon, const Rows& out,
              float* inverse_rms) {
  launch(queue, rms_norm_kernel, {(x.rows * x.heads + kWarps - 1) / kWarps}, kThreads, x, weight,
         epsilon, out, inverse_rms);
}

void rms_norm_backward(Queue& queue, const RmsNormBackward& a) {
  const int64_t block_rows = (a.x.rows + kNormBlocksMax - 1) / kNormBlocksMax;
  const int64_t blocks = (a.x.rows + block_rows - 1) / block_rows;
  launch(queue, rms_norm_backward_kernel, {(blocks + kWarps - 1) / kWarps}, kThreads, a,
         block_rows);
  if (a.dweight == nullptr) return;
  launch(queue, add_partials_kernel, element_grid(a.x.columns), kElementThreads, a.dweight_partial,
         blocks, a.x.columns, a.dweight);
}

}  // namespace percheron::cuda
