#include "tests/kernels/kernel_test.h"

namespace percheron::kernel_test {
namespace {

using Optimizer = KernelTest;

TEST_F(Optimizer, AdamWFollowsItsDefinitionForSeveralSteps) {
  const int64_t n = 10007;
  const Tensor p = random(DType::kF32, {n}), m = zeros(DType::kF32, {n}),
               v = zeros(DType::kF32, {n});
  const double lr = 1e-2, beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, decay = 0.1, factor = 0.5;
  const Tensor scale = from(DType::kF32, {1}, {factor});
  std::vector<double> pd = values(p), md(pd.size()), vd(pd.size());
  for (int64_t step = 1; step <= 4; ++step) {
    const Tensor g = random(DType::kF32, {n});
    const std::vector<double> gd = values(g);
    for (size_t i = 0; i < pd.size(); ++i) {
      const double gradient = factor * gd[i];
      md[i] = beta1 * md[i] + (1 - beta1) * gradient;
      vd[i] = beta2 * vd[i] + (1 - beta2) * gradient * gradient;
      const double m_hat = md[i] / (1 - std::pow(beta1, step));
      const double v_hat = vd[i] / (1 - std::pow(beta2, step));
      pd[i] = pd[i] * (1 - lr * decay) - lr * m_hat / (std::sqrt(v_hat) + epsilon);
    }
    const AdamWSettings settings{static_cast<float>(lr),    static_cast<float>(beta1),
                                 static_cast<float>(beta2), static_cast<float>(epsilon),
                                 static_cast<float>(decay), step};
    ops().adamw(context_, settings, scale, g, p, m, v);
    expect_near(p, pd, 1e-6);
    expect_near(m, md, 1e-6, 0.1);
    expect_near(v, vd, 1e-6, 0.1);
  }
}

TEST_F(Optimizer, SquaredNormAddsUpTensorsInDouble) {
  const Tensor x = random(DType::kF32, {300001}), y = random(DType::kF32, {40, 50});
  const Tensor sum = zeros(DType::kF64, {1});
  double expected = 0;
  for (const double value : values(x)) expected += value * value;
  for (const double value : values(y.view().columns(10, 41))) expected += value * value;
  ops().squared_norm(context_, x, sum);
  ops().squared_norm(context_, y.view().columns(10, 41), sum);
  expect_near(sum, {expected}, 1e-7, 0);
  const Tensor again = zeros(DType::kF64, {1});
  ops().squared_norm(context_, x, again);
  ops().squared_norm(context_, y.view().columns(10, 41), again);
  EXPECT_EQ(bits(sum), bits(again));
}

TEST_F(Optimizer, ClipScaleAveragesAndClips) {
  const auto scale_of = [&](double squared, double divisor, double norm_max) {
    const Tensor sum = from(DType::kF64, {1}, {squared}), scale = poisoned(DType::kF32, {1});
    ops().clip_scale(context_, sum, divisor, norm_max, scale);
    return values(scale)[0];
  };
  EXPECT_FLOAT_EQ(static_cast<float>(scale_of(100, 4, 0)), 0.25f);
  EXPECT_FLOAT_EQ(static_cast<float>(scale_of(100, 4, 10)), 0.25f);
  EXPECT_FLOAT_EQ(static_cast<float>(scale_of(100, 4, 1)), static_cast<float>(1 / 2.500001 / 4));
  EXPECT_FLOAT_EQ(static_cast<float>(scale_of(0, 2, 1)), 0.5f);
}

TEST_F(Optimizer, LinearCombinationsAndScaling) {
  const Tensor x = random(DType::kF32, {5, 4001}), y = random(DType::kF32, {5, 4001});
  std::vector<double> expected = values(y);
  const std::vector<double> xd = values(x);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = 3 * xd[i] - 0.5 * expected[i];
  ops().axpby(context_, 3, x, -0.5, y);
  expect_near(y, expected, 1e-6);
  const Tensor factor = from(DType::kF32, {1}, {-2});
  for (double& value : expected) value *= -2;
  ops().scale_by(context_, factor, y);
  expect_near(y, expected, 1e-6);
  const Tensor fresh = poisoned(DType::kF32, {5, 4001});
  ops().axpby(context_, 1, x, 0, fresh);
  EXPECT_EQ(values(fresh), xd);
}

}  // namespace
}  // namespace percheron::kernel_test
