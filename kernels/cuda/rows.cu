// Moving and adding rows.

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"

namespace percheron::cuda {
namespace {

__global__ void copy_kernel(ConstRows x, Rows y) {
  const int64_t n = element_count(x);
  for (int64_t i = first_element(); i < n; i += element_step()) {
    store(y, element_offset(y, i), load(x, element_offset(x, i)));
  }
}

__global__ void add_kernel(ConstRows x, Rows y) {
  const int64_t n = element_count(x);
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t at = element_offset(y, i);
    store(y, at, load(y, at) + load(x, element_offset(x, i)));
  }
}

/// Elements of one size, whatever their type.
template <class Word>
__global__ void fill_zero_kernel(Rows x) {
  const int64_t n = element_count(x);
  for (int64_t i = first_element(); i < n; i += element_step()) {
    static_cast<Word*>(x.data)[element_offset(x, i)] = 0;
  }
}

__global__ void gather_rows_kernel(ConstRows table, const int32_t* rows, Rows out) {
  const int64_t n = element_count(out);
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t r = i / out.columns, column = i - r * out.columns;
    const int32_t row = rows[r];
    store(out, row_offset(out, r) + column,
          row < 0 ? 0.f : load(table, row_offset(table, row) + column));
  }
}

/// The indices are distinct: no two threads add to one element.
__global__ void scatter_add_rows_kernel(ConstRows x, const int32_t* rows, Rows out) {
  const int64_t n = element_count(x);
  auto* target = static_cast<float*>(out.data);
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t r = i / x.columns, column = i - r * x.columns;
    if (rows[r] < 0) continue;
    target[row_offset(out, rows[r]) + column] += load(x, row_offset(x, r) + column);
  }
}

__global__ void add_bias_kernel(ConstRows x, const float* bias, Write write, Rows y) {
  const int64_t n = element_count(y);
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t r = i / y.columns, column = i - r * y.columns;
    const int64_t at = row_offset(y, r) + column;
    float value = load(x, row_offset(x, r) + column) + bias[column];
    if (write == Write::kAdd) value += load(y, at);
    store(y, at, value);
  }
}

}  // namespace

void copy(Queue& queue, const ConstRows& x, const Rows& y) {
  launch(queue, copy_kernel, element_grid(element_count(x)), kElementThreads, x, y);
}

void add(Queue& queue, const ConstRows& x, const Rows& y) {
  launch(queue, add_kernel, element_grid(element_count(x)), kElementThreads, x, y);
}

void fill_zero(Queue& queue, const Rows& x) {
  const Grid grid = element_grid(element_count(x));
  switch (dtype_bytes(x.dtype)) {
    case 1: return launch(queue, fill_zero_kernel<uint8_t>, grid, kElementThreads, x);
    case 2: return launch(queue, fill_zero_kernel<uint16_t>, grid, kElementThreads, x);
    case 4: return launch(queue, fill_zero_kernel<uint32_t>, grid, kElementThreads, x);
    default: return launch(queue, fill_zero_kernel<uint64_t>, grid, kElementThreads, x);
  }
}

void gather_rows(Queue& queue, const ConstRows& table, const int32_t* rows, const Rows& out) {
  launch(queue, gather_rows_kernel, element_grid(element_count(out)), kElementThreads, table, rows,
         out);
}

void scatter_add_rows(Queue& queue, const ConstRows& x, const int32_t* rows, const Rows& out) {
  launch(queue, scatter_add_rows_kernel, element_grid(element_count(x)), kElementThreads, x, rows,
         out);
}

void add_bias(Queue& queue, const ConstRows& x, const float* bias, Write write, const Rows& y) {
  launch(queue, add_bias_kernel, element_grid(element_count(y)), kElementThreads, x, bias, write,
         y);
}

}  // namespace percheron::cuda
