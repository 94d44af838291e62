// Rotary position embedding, and silu(gate) * up with its gradient.

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"

namespace percheron::cuda {
namespace {

__global__ void rotary_kernel(Rows x, const int32_t* positions, const float* cos, const float* sin,
                              float sign) {
  const int64_t half = x.columns / 2, pairs = x.rows * x.heads * half;
  for (int64_t i = first_element(); i < pairs; i += element_step()) {
    const int64_t part = i / half, column = i - part * half;
    const int64_t row = part / x.heads, head = part - row * x.heads;
    const int64_t angle = positions[row] * half + column;
    const float c = cos[angle], s = sin[angle] * sign;
    const int64_t first = row_offset(x, row, head) + column, second = first + half;
    const float a = load(x, first), b = load(x, second);
    store(x, first, a * c - b * s);
    store(x, second, b * c + a * s);
  }
}

__device__ inline float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

__global__ void swiglu_kernel(ConstRows gate_up, Rows out) {
  const int64_t n = element_count(out);
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t row = i / out.columns, column = i - row * out.columns;
    const int64_t gate = row_offset(gate_up, row) + column;
    const float g = load(gate_up, gate);
    store(out, row_offset(out, row) + column, g * sigmoid(g) * load(gate_up, gate + out.columns));
  }
}

__global__ void swiglu_backward_kernel(ConstRows dout, ConstRows gate_up, Rows dgate_up) {
  const int64_t n = element_count(dout);
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t row = i / dout.columns, column = i - row * dout.columns;
    const int64_t gate = row_offset(gate_up, row) + column;
    const float dy = load(dout, row_offset(dout, row) + column);
    const float g = load(gate_up, gate), u = load(gate_up, gate + dout.columns);
    const float s = sigmoid(g);
    const int64_t dgate = row_offset(dgate_up, row) + column;
    store(dgate_up, dgate + dout.columns, dy * g * s);
    store(dgate_up, dgate, dy * u * s * (1.f + g * (1.f - s)));
  }
}

}  // namespace

void rotary(Queue& queue, const Rows& x, const int32_t* positions, const float* cos,
            const float* sin, float sign) {
  launch(queue, rotary_kernel, element_grid(element_count(x) / 2), kElementThreads, x, positions,
         cos, sin, sign);
}

void swiglu(Queue& queue, const ConstRows& gate_up, const Rows& out) {
  launch(queue, swiglu_kernel, element_grid(element_count(out)), kElementThreads, gate_up, out);
}

void swiglu_backward(Queue& queue, const ConstRows& dout, const ConstRows& gate_up,
                     const Rows& dgate_up) {
  launch(queue, swiglu_backward_kernel, element_grid(element_count(dout)), kElementThreads, dout,
         gate_up, dgate_up);
}

}  // namespace percheron::cuda
