// Losses over rows of logits and their gradients: a block per row, which reads it two to four
// times.

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"

namespace percheron::cuda {
namespace {

constexpr double kAcceptMin = 1e-5;       // kNegativeLogAccept
constexpr double kHybridDecay = 3;        // kHybrid
constexpr float kTiny = 1.17549435e-38f;  // the smallest normal number
constexpr float kLowest = -INFINITY;

/// Calls f(i) for the thread's elements of a row.
template <class F>
__device__ inline void for_elements(int64_t n, F f) {
  for (int64_t i = threadIdx.x; i < n; i += kReduceThreads) f(i);
}

/// The block's sum of f(i) over a row: f32 within a thread, f64 across.
template <class F>
__device__ inline double sum_elements(int64_t n, F f) {
  float sum = 0;
  for_elements(n, [&](int64_t i) { sum += f(i); });
  return block_sum(sum);
}

__device__ inline Largest largest_of(const float* x, int64_t n) {
  Largest best{kLowest, 0x7fffffff};
  for_elements(n, [&](int64_t i) {
    if (x[i] > best.value) best = {x[i], static_cast<int32_t>(i)};
  });
  best = block_largest(best);
  // Nothing larger than minus infinity: the first, as on every device.
  return best.value == kLowest ? Largest{kLowest, 0} : best;
}

/// A row's softmax, ready to be evaluated at any element.
struct Softmax {
  const float* x;
  float largest;      // subtracted first
  float inverse_sum;  // of the exponentials of what is left
  float log_sum;      // log p = x - largest - log_sum
  int32_t argmax;

  __device__ float log_p(int64_t i) const { return x[i] - largest - log_sum; }
  __device__ float p(int64_t i) const { return expf(x[i] - largest) * inverse_sum; }
};

__device__ inline Softmax softmax_of(const float* x, int64_t n) {
  const Largest best = largest_of(x, n);
  const double sum = sum_elements(n, [&](int64_t i) { return expf(x[i] - best.value); });
  return {x, best.value, static_cast<float>(1.0 / sum), static_cast<float>(log(sum)), best.index};
}

/// x = weight (softmax - onehot(label)).
__device__ inline void cross_entropy_gradient(const Softmax& q, int64_t n, int32_t label,
                                              float weight, float* x) {
  const float factor = q.inverse_sum * weight;
  for_elements(n, [&](int64_t i) {
    const float softmax = expf(x[i] - q.largest) * factor;
    x[i] = i == label ? softmax - weight : softmax;
  });
}

__device__ inline void fill_row_zero(int64_t n, float* x) {
  for_elements(n, [&](int64_t i) { x[i] = 0; });
}

/// What the losses other than cross-entropy to one label are made of. Each has the gradient
///   dL/dz_i = q_i (g_i - sum_j q_j g_j)   with g = dL/dq.
struct Pair {
  Softmax q, p;  // draft, teacher
  int64_t n;
  float weight;
  bool gradient;
  float* x;  // the draft's logits, which the gradient replaces
};

/// min(p, q)'s derivative by q: 1 where q is smaller, one half on a tie (as torch.minimum).
__device__ inline float overlap_slope(float p, float q) {
  return q < p ? 1.f : (q == p ? 0.5f : 0.f);
}

/// log(q / m) with m = (p + q) / 2; 0 where q is 0, as q log q is.
__device__ inline float log_ratio_to_mean(float q, float p) {
  return q > kTiny ? logf(q / (0.5f * (p + q))) : 0.f;
}

/// KL(p || q), or the soft cross-entropy; both have the gradient q - p.
__device__ inline double forward_kl(const Pair& a, bool minus_entropy) {
  return sum_elements(a.n, [&](int64_t i) {
    const float p = a.p.p(i), log_q = a.q.log_p(i);
    // A teacher logit of -infinity has probability 0 and adds nothing.
    if (!(p > 0.f)) return 0.f;
    return p * (minus_entropy ? a.p.log_p(i) - log_q : -log_q);
  });
}

__device__ inline void difference_gradient(const Pair& a) {
  for_elements(a.n, [&](int64_t i) { a.x[i] = (a.q.p(i) - a.p.p(i)) * a.weight; });
}

__device__ inline double reverse_kl(const Pair& a) {
  const double loss = sum_elements(a.n, [&](int64_t i) {
    const float q = a.q.p(i);
    return q > 0.f ? q * (a.q.log_p(i) - a.p.log_p(i)) : 0.f;
  });
  if (!a.gradient) return loss;
  const float mean = static_cast<float>(loss);
  for_elements(a.n, [&](int64_t i) {
    const float ratio = a.q.log_p(i) - a.p.log_p(i);
    a.x[i] = a.q.p(i) * (ratio - mean) * a.weight;
  });
  return loss;
}

__device__ inline double jensen_shannon(const Pair& a) {
  const double q_part = sum_elements(a.n, [&](int64_t i) {
    const float q = a.q.p(i);
    return 0.5f * q * log_ratio_to_mean(q, a.p.p(i));
  });
  const double p_part = sum_elements(a.n, [&](int64_t i) {
    const float p = a.p.p(i);
    return 0.5f * p * log_ratio_to_mean(p, a.q.p(i));
  });
  if (a.gradient) {
    const float mean = static_cast<float>(q_part);
    for_elements(a.n, [&](int64_t i) {
      const float q = a.q.p(i);
      a.x[i] = q * (0.5f * log_ratio_to_mean(q, a.p.p(i)) - mean) * a.weight;
    });
  }
  return p_part + q_part;
}

/// The losses made of the overlap A = sum min(p, q): total variation 1 - A, -log max(A, 1e-5), and
/// the hybrid.
__device__ inline double overlap_loss(TeacherLoss kind, const Pair& a) {
  const double accept = sum_elements(a.n, [&](int64_t i) { return fminf(a.p.p(i), a.q.p(i)); });
  const double mean_slope = sum_elements(a.n, [&](int64_t i) {
    const float q = a.q.p(i);
    return q * overlap_slope(a.p.p(i), q);
  });
  double loss = 1 - accept, slope_by_accept = -1, lambda = 0;
  if (kind == TeacherLoss::kNegativeLogAccept) {
    loss = -log(accept > kAcceptMin ? accept : kAcceptMin);
    slope_by_accept = accept >= kAcceptMin ? -1 / accept : 0;
  } else if (kind == TeacherLoss::kHybrid) {
    lambda = exp(-kHybridDecay * accept);
    loss = lambda * forward_kl(a, true) + (1 - lambda) * (1 - accept);
    slope_by_accept = -(1 - lambda);
  }
  if (!a.gradient) return loss;
  const float slope_factor = static_cast<float>(slope_by_accept);
  const float mean = static_cast<float>(mean_slope * slope_by_accept);
  const float kl_factor = static_cast<float>(lambda);
  for_elements(a.n, [&](int64_t i) {
    const float p = a.p.p(i), q = a.q.p(i);
    const float overlap_part = q * (overlap_slope(p, q) * slope_factor - mean);
    a.x[i] = (overlap_part + (q - p) * kl_factor) * a.weight;
  });
  return loss;
}

/// -log q of the teacher's largest.
__device__ inline double argmax_loss(const Pair& a) {
  const int32_t label = a.p.argmax;
  const double loss = static_cast<double>(a.q.log_sum) + a.q.largest - a.x[label];
  __syncthreads();  // The label's logit is read before anyone overwrites it.
  if (a.gradient) cross_entropy_gradient(a.q, a.n, label, a.weight, a.x);
  return loss;
}

__device__ inline double pair_loss(TeacherLoss kind, const Pair& a) {
  switch (kind) {
    case TeacherLoss::kSoftCrossEntropy:
    case TeacherLoss::kKlDivergence: {
      const double loss = forward_kl(a, kind == TeacherLoss::kKlDivergence);
      if (a.gradient) difference_gradient(a);
      return loss;
    }
    case TeacherLoss::kReverseKl: return reverse_kl(a);
    case TeacherLoss::kJensenShannon: return jensen_shannon(a);
    case TeacherLoss::kTeacherArgmax: return argmax_loss(a);
    case TeacherLoss::kTotalVariation:
    case TeacherLoss::kNegativeLogAccept:
    case TeacherLoss::kHybrid: return overlap_loss(kind, a);
  }
  return 0;
}

__global__ void cross_entropy_kernel(CrossEntropy a) {
  const int64_t row = blockIdx.x, n = a.logits.columns;
  float* x = static_cast<float*>(a.logits.data) + row * a.logits.row_stride;
  const Softmax q = softmax_of(x, n);
  const int32_t label = a.labels[row];
  const bool labelled = label >= 0 && label < n;
  if (threadIdx.x == 0) {
    if (a.argmax != nullptr) a.argmax[row] = q.argmax;
    a.loss[row] = labelled ? q.largest - x[label] + q.log_sum : 0.f;
  }
  if (a.gradient == Gradient::kNone) return;
  __syncthreads();  // The label's logit is read before anyone overwrites it.
  if (!labelled || a.weights[row] == 0.f) {
    fill_row_zero(n, x);
  } else {
    cross_entropy_gradient(q, n, label, a.weights[row], x);
  }
}

__global__ void teacher_loss_kernel(TeacherLossRows a) {
  const int64_t row = blockIdx.x, n = a.logits.columns;
  float* x = static_cast<float*>(a.logits.data) + row * a.logits.row_stride;
  const float* teacher =
      static_cast<const float*>(a.teacher_logits.data) + row * a.teacher_logits.row_stride;
  const float weight = a.gradient == Gradient::kNone ? 0.f : a.weights[row];
  const Pair pair{softmax_of(x, n), softmax_of(teacher, n), n, weight, weight != 0.f, x};
  const double loss = pair_loss(a.kind, pair);
  // A weight of zero makes the gradient zero, whatever it would have been multiplied with.
  if (a.gradient == Gradient::kInPlace && weight == 0.f) fill_row_zero(n, x);
  if (threadIdx.x != 0) return;
  a.loss[row] = static_cast<float>(loss);
  if (a.argmax != nullptr) a.argmax[row] = pair.q.argmax;
  if (a.teacher_argmax != nullptr) a.teacher_argmax[row] = pair.p.argmax;
}

__global__ void argmax_kernel(ConstRows x, int32_t* out) {
  const int64_t row = blockIdx.x;
  const Largest best =
      largest_of(static_cast<const float*>(x.data) + row * x.row_stride, x.columns);
  if (threadIdx.x == 0) out[row] = best.index;
}

}  // namespace

void cross_entropy(Queue& queue, const CrossEntropy& a) {
  launch(queue, cross_entropy_kernel, {a.logits.rows}, kReduceThreads, a);
}

void teacher_loss(Queue& queue, const TeacherLossRows& a) {
  launch(queue, teacher_loss_kernel, {a.logits.rows}, kReduceThreads, a);
}

void argmax(Queue& queue, const ConstRows& x, int32_t* out) {
  launch(queue, argmax_kernel, {x.rows}, kReduceThreads, x, out);
}

}  // namespace percheron::cuda
