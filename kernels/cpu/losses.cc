// Losses over rows of logits and their gradients. Each row is read two to four times; it fits a
// cache.

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/softmax.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

constexpr double kAcceptMin = 1e-5;  // kNegativeLogAccept
constexpr double kHybridDecay = 3;   // kHybrid

/// x = weight (softmax - onehot(label)).
void cross_entropy_gradient(const Softmax& q, int64_t n, int32_t label, float weight, float* x) {
  const float factor = q.inverse_sum * weight;
  for_lanes(n, [&](int64_t i, auto width) {
    store(x + i, exp(load(x + i, width) - q.largest) * factor, width);
  });
  x[label] -= weight;
}

/// What the losses other than cross-entropy to one label are made of. Each has the gradient
///   dL/dz_i = q_i (g_i - sum_j q_j g_j)   with g = dL/dq.
struct Pair {
  Softmax q, p;  // draft, teacher
  int64_t n;
};

/// min(p, q)'s derivative by q: 1 where q is smaller, one half on a tie (as torch.minimum).
PERCHERON_INLINE Vec overlap_slope(Vec p, Vec q) {
  return q < p ? splat(1.f) : (q == p ? splat(0.5f) : splat(0.f));
}

/// log(q / m) with m = (p + q) / 2; 0 where q is 0, as q log q is.
PERCHERON_INLINE Vec log_ratio_to_mean(Vec q, Vec p) {
  constexpr float kTiny = 1.17549435e-38f;
  return q > kTiny ? log(q / (0.5f * (p + q))) : splat(0.f);
}

/// Writes weight times the gradient of the loss whose g is `slope(i, width, p, q)`.
template <class F>
void write_gradient(const Pair& pair, float weight, double mean_slope, F&& slope, float* x) {
  for_lanes(pair.n, [&](int64_t i, auto width) {
    const Vec p = pair.p.p(i, width), q = pair.q.p(i, width);
    const Vec g = slope(i, width, p, q) - static_cast<float>(mean_slope);
    store(x + i, q * g * weight, width);
  });
}

/// KL(p || q), or the soft cross-entropy; both have the gradient q - p.
double forward_kl(const Pair& pair, bool minus_entropy) {
  return sum_elements<1>(pair.n,
                         [&](int64_t i, auto width, Vec* sums) {
                           const Vec p = pair.p.p(i, width), log_q = pair.q.log_p(i, width);
                           // A teacher logit of -infinity has probability 0 and adds nothing.
                           const Vec term = minus_entropy ? pair.p.log_p(i, width) - log_q : -log_q;
                           sums[0] += p > 0.f ? p * term : splat(0.f);
                         })
      .total[0];
}

void difference_gradient(const Pair& pair, float weight, float* x) {
  for_lanes(pair.n, [&](int64_t i, auto width) {
    store(x + i, (pair.q.p(i, width) - pair.p.p(i, width)) * weight, width);
  });
}

double reverse_kl(const Pair& pair, float weight, Gradient gradient, float* x) {
  const auto ratio = [&](int64_t i, auto width, Vec, Vec) {
    return pair.q.log_p(i, width) - pair.p.log_p(i, width);
  };
  const double loss = sum_elements<1>(pair.n, [&](int64_t i, auto width, Vec* sums) {
                        const Vec q = pair.q.p(i, width);
                        sums[0] += q > 0.f ? q * ratio(i, width, q, q) : splat(0.f);
                      }).total[0];
  if (gradient == Gradient::kInPlace) write_gradient(pair, weight, loss, ratio, x);
  return loss;
}

double jensen_shannon(const Pair& pair, float weight, Gradient gradient, float* x) {
  const Sums<2> sums = sum_elements<2>(pair.n, [&](int64_t i, auto width, Vec* sums) {
    const Vec p = pair.p.p(i, width), q = pair.q.p(i, width);
    const Vec q_term = q * log_ratio_to_mean(q, p);
    sums[0] += 0.5f * (p * log_ratio_to_mean(p, q) + q_term);
    sums[1] += 0.5f * q_term;
  });
  if (gradient == Gradient::kInPlace) {
    const auto slope = [](int64_t, auto, Vec p, Vec q) { return 0.5f * log_ratio_to_mean(q, p); };
    write_gradient(pair, weight, sums.total[1], slope, x);
  }
  return sums.total[0];
}

/// total[0] = sum min(p, q), the expected acceptance; total[1] = sum q d min(p, q) / dq.
Sums<2> overlap(const Pair& pair) {
  return sum_elements<2>(pair.n, [&](int64_t i, auto width, Vec* sums) {
    const Vec p = pair.p.p(i, width), q = pair.q.p(i, width);
    sums[0] += min(p, q);
    sums[1] += q * overlap_slope(p, q);
  });
}

/// The losses made of the overlap A: total variation 1 - A, -log max(A, 1e-5), and the hybrid.
double overlap_loss(TeacherLoss kind, const Pair& pair, float weight, Gradient gradient, float* x) {
  const Sums<2> sums = overlap(pair);
  const double accept = sums.total[0];
  double loss = 1 - accept, slope_by_accept = -1, lambda = 0;
  if (kind == TeacherLoss::kNegativeLogAccept) {
    loss = -__builtin_log(larger(accept, kAcceptMin));
    slope_by_accept = accept >= kAcceptMin ? -1 / accept : 0;
  } else if (kind == TeacherLoss::kHybrid) {
    lambda = __builtin_exp(-kHybridDecay * accept);
    loss = lambda * forward_kl(pair, true) + (1 - lambda) * (1 - accept);
    slope_by_accept = -(1 - lambda);
  }
  if (gradient == Gradient::kNone) return loss;
  const float slope_factor = static_cast<float>(slope_by_accept);
  const float mean = static_cast<float>(sums.total[1] * slope_by_accept);
  const float kl_factor = static_cast<float>(lambda);
  for_lanes(pair.n, [&](int64_t i, auto width) {
    const Vec p = pair.p.p(i, width), q = pair.q.p(i, width);
    const Vec overlap_part = q * (overlap_slope(p, q) * slope_factor - mean);
    store(x + i, (overlap_part + (q - p) * kl_factor) * weight, width);
  });
  return loss;
}

double pair_loss(TeacherLoss kind, const Pair& pair, float weight, Gradient gradient, float* x) {
  switch (kind) {
    case TeacherLoss::kSoftCrossEntropy:
    case TeacherLoss::kKlDivergence: {
      const double loss = forward_kl(pair, kind == TeacherLoss::kKlDivergence);
      if (gradient == Gradient::kInPlace) difference_gradient(pair, weight, x);
      return loss;
    }
    case TeacherLoss::kReverseKl: return reverse_kl(pair, weight, gradient, x);
    case TeacherLoss::kJensenShannon: return jensen_shannon(pair, weight, gradient, x);
    case TeacherLoss::kTeacherArgmax: {
      const int32_t label = pair.p.argmax;
      const double loss = pair.q.log_sum + pair.q.largest - static_cast<double>(x[label]);
      if (gradient == Gradient::kInPlace) {
        cross_entropy_gradient(pair.q, pair.n, label, weight, x);
      }
      return loss;
    }
    case TeacherLoss::kTotalVariation:
    case TeacherLoss::kNegativeLogAccept:
    case TeacherLoss::kHybrid: return overlap_loss(kind, pair, weight, gradient, x);
  }
  return 0;
}

}  // namespace

void cross_entropy(const Rows& logits, const int32_t* labels, const float* weights,
                   Gradient gradient, float* loss, int32_t* argmax) {
  const int64_t n = logits.columns;
  for_rows(logits.rows, logits.rows * n, [&](int64_t r) {
    float* x = row_of<float>(logits, r);
    const Softmax q = softmax_of(x, n);
    if (argmax != nullptr) argmax[r] = q.argmax;
    const bool labelled = labels[r] >= 0 && labels[r] < n;
    loss[r] = labelled ? q.largest - x[labels[r]] + q.log_sum : 0.f;
    if (gradient == Gradient::kNone) return;
    if (!labelled || weights[r] == 0.f) {
      __builtin_memset(x, 0, static_cast<size_t>(n) * sizeof(float));
    } else {
      cross_entropy_gradient(q, n, labels[r], weights[r], x);
    }
  });
}

void teacher_loss(const TeacherLossRows& a) {
  const int64_t n = a.logits.columns;
  for_rows(a.logits.rows, 2 * a.logits.rows * n, [&](int64_t r) {
    float* x = row_of<float>(a.logits, r);
    const float* teacher = row_of<float>(a.teacher_logits, r);
    const Pair pair{softmax_of(x, n), softmax_of(teacher, n), n};
    if (a.argmax != nullptr) a.argmax[r] = pair.q.argmax;
    if (a.teacher_argmax != nullptr) a.teacher_argmax[r] = pair.p.argmax;
    const float weight = a.gradient == Gradient::kNone ? 0.f : a.weights[r];
    const bool zero = a.gradient == Gradient::kInPlace && weight == 0.f;
    const Gradient gradient = zero ? Gradient::kNone : a.gradient;
    a.loss[r] = static_cast<float>(pair_loss(a.kind, pair, weight, gradient, x));
    if (zero) __builtin_memset(x, 0, static_cast<size_t>(n) * sizeof(float));
  });
}

void argmax(const ConstRows& x, int32_t* out) {
  for_rows(x.rows, x.rows * x.columns,
           [&](int64_t r) { out[r] = largest_of(row_of<float>(x, r), x.columns).index; });
}

}  // namespace percheron::cpu::PERCHERON_ISA
