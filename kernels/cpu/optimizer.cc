// Passes over parameters, gradients and moments.

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

/// Sum of squares: lanes in f32 over short runs, which are added in f64.
template <class X>
double sum_of_squares(const X* x, int64_t n) {
  constexpr int64_t kRun = 1024;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kRun) {
    Vec sum = {};
    for_lanes(smaller(kRun, n - begin), [&](int64_t i, auto width) {
      const Vec v = load(x + begin + i, width);
      sum += v * v;
    });
    for (int i = 0; i < kLanes; ++i) total += static_cast<double>(sum[i]);
  }
  return total;
}

}  // namespace

void squared_norm(const ConstRows& x, double* partial, double* sum) {
  // One row, or many that are not adjacent in memory: blocks never cross a row.
  const int64_t row_blocks = (x.columns + kSumBlockElements - 1) / kSumBlockElements;
  const int64_t blocks = x.rows * row_blocks;
  with_float(x.dtype, [&](auto* x_type) {
    using X = Pointee<decltype(x_type)>;
    for_rows(blocks, x.rows * x.columns, [&](int64_t block) {
      const int64_t begin = block % row_blocks * kSumBlockElements;
      partial[block] = sum_of_squares(row_of<X>(x, block / row_blocks) + begin,
                                      smaller(kSumBlockElements, x.columns - begin));
    });
  });
  for (int64_t block = 0; block < blocks; ++block) *sum += partial[block];
}

void adamw(const AdamWSettings& settings, float scale, const float* g, float* p, float* m, float* v,
           int64_t n) {
  const double step = static_cast<double>(settings.step);
  const double correction1 = 1.0 - __builtin_pow(settings.beta1, step);
  const double correction2 = 1.0 - __builtin_pow(settings.beta2, step);
  const float keep =
      static_cast<float>(1.0 - static_cast<double>(settings.learning_rate) * settings.weight_decay);
  const float step_size = static_cast<float>(settings.learning_rate / correction1);
  const float inverse_root = static_cast<float>(1.0 / __builtin_sqrt(correction2));
  const float beta1 = settings.beta1, beta2 = settings.beta2, epsilon = settings.epsilon;
  for_chunks(1, 1, n, [&](int64_t, int64_t, int64_t c, int64_t count) {
    for_lanes(count, [&](int64_t j, auto width) {
      const int64_t i = c + j;
      const Vec gradient = load(g + i, width) * scale;
      const Vec m_new = load(m + i, width) * beta1 + gradient * (1.f - beta1);
      const Vec v_new = load(v + i, width) * beta2 + gradient * gradient * (1.f - beta2);
      Vec root;
      for (int k = 0; k < kLanes; ++k) root[k] = __builtin_sqrtf(v_new[k]);
      const Vec update = m_new / (root * inverse_root + epsilon);
      store(p + i, load(p + i, width) * keep - update * step_size, width);
      store(m + i, m_new, width);
      store(v + i, v_new, width);
    });
  });
}

void axpby(float a, const float* x, float b, float* y, int64_t n) {
  for_chunks(1, 1, n, [&](int64_t, int64_t, int64_t c, int64_t count) {
    for_lanes(count, [&](int64_t j, auto width) {
      const int64_t i = c + j;
      // b = 0 must not read y: it may hold anything.
      const Vec old = b == 0.f ? Vec{} : load(y + i, width) * b;
      store(y + i, load(x + i, width) * a + old, width);
    });
  });
}

}  // namespace percheron::cpu::PERCHERON_ISA
