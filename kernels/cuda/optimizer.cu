// Passes over parameters, gradients and moments.

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"

namespace percheron::cuda {
namespace {

/// Blocks of one row: they never cross its end.
int64_t blocks_of_row(const ConstRows& x) {
  return (x.columns + kSumBlockElements - 1) / kSumBlockElements;
}

__global__ void squares_kernel(ConstRows x, int64_t row_blocks, double* partial) {
  const int64_t row = blockIdx.x / row_blocks;
  const int64_t begin = blockIdx.x % row_blocks * kSumBlockElements;
  const int64_t end = begin + kSumBlockElements < x.columns ? begin + kSumBlockElements : x.columns;
  float sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kReduceThreads) {
    const float value = load(x, row_offset(x, row) + i);
    sum += value * value;
  }
  const double total = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void add_squares_kernel(const double* partial, int64_t count, double* sum) {
  double total = 0;
  for (int64_t i = threadIdx.x; i < count; i += kReduceThreads) total += partial[i];
  total = block_sum(total);
  if (threadIdx.x == 0) *sum += total;
}

__global__ void clip_scale_kernel(const double* squared_norm, double divisor, double norm_max,
                                  float* scale) {
  const double norm = sqrt(*squared_norm) / divisor;
  const double limit = norm_max / (norm + 1e-6);
  const double clip = norm_max > 0 && limit < 1.0 ? limit : 1.0;
  *scale = static_cast<float>(clip / divisor);
}

/// What AdamW's update is made of at one step.
struct AdamWFactors {
  float beta1, beta2, epsilon;
  float keep;          // 1 - learning_rate weight_decay
  float step_size;     // learning_rate / (1 - beta1^step)
  float inverse_root;  // 1 / sqrt(1 - beta2^step)
};

__global__ void adamw_kernel(AdamWFactors f, const float* scale, const float* g, float* p, float* m,
                             float* v, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const float gradient = g[i] * *scale;
    const float m_new = m[i] * f.beta1 + gradient * (1.f - f.beta1);
    const float v_new = v[i] * f.beta2 + gradient * gradient * (1.f - f.beta2);
    const float update = m_new / (sqrtf(v_new) * f.inverse_root + f.epsilon);
    p[i] = p[i] * f.keep - update * f.step_size;
    m[i] = m_new;
    v[i] = v_new;
  }
}

__global__ void axpby_kernel(float a, const float* x, float b, float* y, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step()) {
    // b = 0 must not read y: it may hold anything.
    y[i] = b == 0.f ? x[i] * a : x[i] * a + y[i] * b;
  }
}

__global__ void scale_by_kernel(const float* factor, float* x, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step()) x[i] *= *factor;
}

}  // namespace

int64_t squared_norm_blocks(const ConstRows& x) { return x.rows * blocks_of_row(x); }

void squared_norm(Queue& queue, const ConstRows& x, double* partial, double* sum) {
  const int64_t blocks = squared_norm_blocks(x);
  launch(queue, squares_kernel, {blocks}, kReduceThreads, x, blocks_of_row(x), partial);
  launch(queue, add_squares_kernel, {1}, kReduceThreads, partial, blocks, sum);
}

void clip_scale(Queue& queue, const double* squared_norm, double divisor, double norm_max,
                float* scale) {
  launch(queue, clip_scale_kernel, {1}, 1, squared_norm, divisor, norm_max, scale);
}

void adamw(Queue& queue, const AdamWSettings& settings, const float* scale, const float* g,
           float* p, float* m, float* v, int64_t n) {
  const double step = static_cast<double>(settings.step);
  const double learning_rate = settings.learning_rate;
  AdamWFactors f{settings.beta1, settings.beta2, settings.epsilon, 0, 0, 0};
  f.keep = static_cast<float>(1.0 - learning_rate * settings.weight_decay);
  f.step_size = static_cast<float>(learning_rate / (1.0 - pow(settings.beta1, step)));
  f.inverse_root = static_cast<float>(1.0 / sqrt(1.0 - pow(settings.beta2, step)));
  launch(queue, adamw_kernel, element_grid(n), kElementThreads, f, scale, g, p, m, v, n);
}

void axpby(Queue& queue, float a, const float* x, float b, float* y, int64_t n) {
  launch(queue, axpby_kernel, element_grid(n), kElementThreads, a, x, b, y, n);
}

void scale_by(Queue& queue, const float* factor, float* x, int64_t n) {
  launch(queue, scale_by_kernel, element_grid(n), kElementThreads, factor, x, n);
}

}  // namespace percheron::cuda
