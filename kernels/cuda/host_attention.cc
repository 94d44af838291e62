#include "kernels/cuda/host_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cuda/emulator/work_queue.h"
#include "kernels/tensor.h"

namespace percheron::cuda {
namespace {

/// cuDNN's for bf16: multiples of 8 up to this.
constexpr int64_t kHeadDimStep = 8, kLibraryHeadDimMax = 256;

float at(const void* data, int64_t i) {
  return float_from_bf16(static_cast<const uint16_t*>(data)[i]);
}

/// One head of one query row, `row` of its document.
void attend(const PackedShape& shape, const PackedOperands& x, int64_t document, int64_t row,
            int64_t head, std::vector<double>& weights) {
  const int64_t d = shape.head_dim, kv_head = head / (shape.heads / shape.kv_heads);
  const int64_t q = x.q_offsets[document] + row * shape.q_stride + head * d;
  const int64_t k = x.k_offsets[document] + kv_head * d;
  const int64_t v = x.v_offsets[document] + kv_head * d;
  const int64_t out = x.out_offsets[document] + row * shape.out_stride + head * d;
  double largest = -INFINITY, sum = 0;
  weights.assign(static_cast<size_t>(row) + 1, 0);
  for (int64_t key = 0; key <= row; ++key) {
    double& score = weights[static_cast<size_t>(key)];
    for (int64_t i = 0; i < d; ++i) {
      score += static_cast<double>(at(x.q, q + i)) * at(x.k, k + key * shape.k_stride + i);
    }
    score *= shape.scale;
    largest = std::max(largest, score);
  }
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  for (int64_t i = 0; i < d; ++i) {
    double value = 0;
    for (int64_t key = 0; key <= row; ++key) {
      value += weights[static_cast<size_t>(key)] * at(x.v, v + key * shape.v_stride + i);
    }
    static_cast<uint16_t*>(x.out)[out + i] = bf16_from_float(static_cast<float>(value / sum));
  }
}

void attend_all(const PackedShape& shape, const PackedOperands& operands) {
  std::vector<double> weights;
  for (int64_t document = 0; document < shape.documents; ++document) {
    for (int64_t row = 0; row < operands.lengths[document]; ++row) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        attend(shape, operands, document, row, head, weights);
      }
    }
  }
}

}  // namespace

Result<AttentionPlan> HostAttention::plan(const PackedShape& shape) {
  if (shape.head_dim % kHeadDimStep != 0 || shape.head_dim > kLibraryHeadDimMax) {
    return failed_precondition("no plan for heads of " + std::to_string(shape.head_dim));
  }
  return AttentionPlan{.workspace_bytes = 1, .kernel = "plain loops"};
}

Status HostAttention::run(Queue& queue, const PackedShape& shape, const PackedOperands& operands) {
  if (queue.stream == nullptr) return ok_status();
  static_cast<emulator::WorkQueue*>(queue.stream)->add([shape, operands] {
    attend_all(shape, operands);
    return ok_status();
  });
  return ok_status();
}

}  // namespace percheron::cuda
