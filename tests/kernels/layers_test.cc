#include <tuple>

#include "tests/kernels/kernel_test.h"

namespace percheron::kernel_test {
namespace {

/// Activations of one dtype.
class Layers : public KernelTest, public testing::WithParamInterface<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  double bound() const { return bound_of(dtype()); }
};
INSTANTIATE_TEST_SUITE_P(Activations, Layers, testing::Values(DType::kF32, DType::kBf16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

double rounded(double value, DType dtype) {
  return dtype == DType::kBf16 ? float_from_bf16(bf16_from_float(static_cast<float>(value)))
                               : value;
}

constexpr double kEpsilon = 1e-5;

struct NormReference {
  std::vector<double> out, inverse_rms, dx, dweight;
};
NormReference norm_reference(const std::vector<double>& x, const std::vector<double>& weight,
                             const std::vector<double>& dy, DType out_dtype) {
  const size_t n = weight.size();
  NormReference r{std::vector<double>(x.size()), std::vector<double>(x.size() / n),
                  std::vector<double>(x.size()), std::vector<double>(n)};
  for (size_t row = 0; row < x.size() / n; ++row) {
    double squares = 0, dot = 0;
    for (size_t i = 0; i < n; ++i) squares += x[row * n + i] * x[row * n + i];
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(n) + kEpsilon);
    r.inverse_rms[row] = inverse;
    for (size_t i = 0; i < n; ++i) {
      const double unit = x[row * n + i] * inverse;
      r.out[row * n + i] = rounded(unit, out_dtype) * weight[i];
      dot += dy[row * n + i] * weight[i] * unit;
      r.dweight[i] += dy[row * n + i] * unit;
    }
    for (size_t i = 0; i < n; ++i) {
      const double unit = x[row * n + i] * inverse;
      r.dx[row * n + i] =
          inverse * (dy[row * n + i] * weight[i] - unit * dot / static_cast<double>(n));
    }
  }
  return r;
}

TEST_P(Layers, RmsNormMatchesTheReferenceAndItsGradient) {
  for (const auto& [rows, columns] : {std::pair{1, 1}, {3, 7}, {130, 64}, {67, 577}}) {
    const Tensor x = random(dtype(), {rows, columns}), dy = random(dtype(), {rows, columns});
    const Tensor weight = random(DType::kF32, {columns});
    const NormReference expected = norm_reference(values(x), values(weight), values(dy), dtype());
    const Tensor out = poisoned(dtype(), {rows, columns});
    const Tensor inverse_rms = poisoned(DType::kF32, {rows});
    ops().rms_norm(context_, x, weight, kEpsilon, out, inverse_rms);
    expect_near(out, expected.out, bound());
    expect_near(inverse_rms, expected.inverse_rms, bound_of(DType::kF32));

    const Tensor dx = poisoned(dtype(), {rows, columns});
    const Tensor dweight = zeros(DType::kF32, {columns});
    ops().rms_norm_backward(context_, dy, x, weight, inverse_rms, Write::kOverwrite, dx, dweight);
    expect_near(dx, expected.dx, bound(), 1);
    expect_near(dweight, expected.dweight, 1e-5, 3);
    // Once more, added, into f32.
    const Tensor sum = zeros(DType::kF32, {rows, columns});
    for (int i = 0; i < 2; ++i) {
      ops().rms_norm_backward(context_, dy, x, weight, inverse_rms, Write::kAdd, sum, TensorView());
    }
    std::vector<double> twice = expected.dx;
    for (double& value : twice) value *= 2;
    expect_near(sum, twice, 3e-6, 2);
  }
}

TEST_P(Layers, RmsNormOfHeadsReadsStridedViewsAndMayAliasItsInput) {
  const int64_t rows = 9, heads = 3, head_dim = 10;
  const Tensor qkv = random(dtype(), {rows, 2 * heads * head_dim + 5});
  const Tensor weight = random(DType::kF32, {head_dim});
  const TensorView q = qkv.view().columns(5, 5 + heads * head_dim).heads(head_dim);
  const std::vector<double> before = values(qkv), x = values(q);
  const NormReference expected = norm_reference(x, values(weight), x, dtype());
  const Tensor inverse_rms = poisoned(DType::kF32, {rows, heads});
  ops().rms_norm(context_, q, weight, kEpsilon, q, inverse_rms);
  expect_near(q, expected.out, bound());
  expect_near(inverse_rms, expected.inverse_rms, bound_of(DType::kF32));
  // Nothing beside the view has changed.
  const std::vector<double> after = values(qkv);
  for (int64_t r = 0; r < rows; ++r) {
    const size_t row = static_cast<size_t>(r * qkv.view().dim(1));
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(before[row + i], after[row + i]);
    for (size_t i = row + 5 + heads * head_dim; i < row + static_cast<size_t>(qkv.view().dim(1));
         ++i) {
      EXPECT_EQ(before[i], after[i]);
    }
  }
}

TEST_P(Layers, RmsNormBackwardMayWriteOverItsGradient) {
  const Tensor x = random(dtype(), {33, 40}), dy = random(dtype(), {33, 40});
  const Tensor weight = random(DType::kF32, {40});
  const NormReference expected = norm_reference(values(x), values(weight), values(dy), dtype());
  const Tensor inverse_rms = from(DType::kF32, {33}, expected.inverse_rms);
  ops().rms_norm_backward(context_, dy, x, weight, inverse_rms, Write::kOverwrite, dy,
                          TensorView());
  expect_near(dy, expected.dx, bound());
}

TEST_P(Layers, RotaryTurnsPairsByTheirAngleAndBackAgain) {
  const int64_t rows = 37, heads = 3, positions_max = 64;
  for (const int64_t head_dim : {2, 6, 64, 96}) {
    const int64_t half = head_dim / 2;
    const Tensor fused = random(dtype(), {rows, (heads + 1) * head_dim});
    const TensorView x = fused.view().columns(head_dim, (heads + 1) * head_dim).heads(head_dim);
    std::vector<double> cos, sin, positions;
    for (int64_t p = 0; p < positions_max; ++p) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(p) *
            std::pow(1e4, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        cos.push_back(std::cos(angle));
        sin.push_back(std::sin(angle));
      }
    }
    for (int64_t r = 0; r < rows; ++r) positions.push_back(static_cast<double>(random_.below(64)));
    const std::vector<double> before = values(x);
    std::vector<double> expected = before;
    for (size_t r = 0; r < static_cast<size_t>(rows * heads); ++r) {
      const size_t p = static_cast<size_t>(positions[r / heads]);
      for (size_t i = 0; i < static_cast<size_t>(half); ++i) {
        const double c = cos[p * half + i], s = sin[p * half + i];
        const size_t a = r * head_dim + i, b = a + half;
        expected[a] = before[a] * c - before[b] * s;
        expected[b] = before[b] * c + before[a] * s;
      }
    }
    const Tensor cos_table = from(DType::kF32, {positions_max, half}, cos);
    const Tensor sin_table = from(DType::kF32, {positions_max, half}, sin);
    const Tensor rows_positions = from(DType::kI32, {rows}, positions);
    ops().rotary(context_, x, rows_positions, cos_table, sin_table, RotaryDirection::kForward);
    expect_near(x, expected, bound());
    ops().rotary(context_, x, rows_positions, cos_table, sin_table, RotaryDirection::kBackward);
    expect_near(x, before, 2 * bound());
  }
}

TEST_P(Layers, SwigluMatchesTheReferenceAndItsGradient) {
  for (const auto& [rows, columns] : {std::pair{1, 1}, {5, 13}, {40, 1000}, {3, 5000}}) {
    const Tensor gate_up = random(dtype(), {rows, 2 * columns}, 3);
    const Tensor dout = random(dtype(), {rows, columns});
    const std::vector<double> x = values(gate_up), d = values(dout);
    std::vector<double> expected(d.size()), expected_d(x.size());
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      for (size_t i = 0; i < static_cast<size_t>(columns); ++i) {
        const size_t g = r * 2 * columns + i, u = g + columns, o = r * columns + i;
        const double s = 1 / (1 + std::exp(-x[g]));
        expected[o] = x[g] * s * x[u];
        expected_d[u] = d[o] * x[g] * s;
        expected_d[g] = d[o] * x[u] * s * (1 + x[g] * (1 - s));
      }
    }
    const Tensor out = poisoned(dtype(), {rows, columns});
    const Tensor dgate_up = poisoned(dtype(), {rows, 2 * columns});
    ops().swiglu(context_, gate_up, out);
    ops().swiglu_backward(context_, dout, gate_up, dgate_up);
    expect_near(out, expected, bound());
    expect_near(dgate_up, expected_d, bound());
  }
}

TEST_P(Layers, SwigluOfLargeGatesIsFinite) {
  const Tensor gate_up = from(dtype(), {1, 8}, {-1000, -100, 100, 1000, 1, 2, 3, 4});
  const Tensor dout = from(dtype(), {1, 4}, {1, 1, 1, 1});
  const Tensor out = poisoned(dtype(), {1, 4}), dgate_up = poisoned(dtype(), {1, 8});
  ops().swiglu(context_, gate_up, out);
  ops().swiglu_backward(context_, dout, gate_up, dgate_up);
  expect_near(out, {0, 0, 300, 4000}, bound());
  expect_near(dgate_up, {0, 0, 3, 4, 0, 0, 100, 1000}, bound());
}

TEST_P(Layers, SumsAndNormGradientsHaveTheSameBitsTwice) {
  const Tensor x = random(dtype(), {3001, 200}), dy = random(dtype(), {3001, 200});
  const Tensor weight = random(DType::kF32, {200});
  const Tensor inverse_rms = random(DType::kF32, {3001});
  std::vector<char> first;
  for (int i = 0; i < 3; ++i) {
    const Tensor dx = poisoned(dtype(), {3001, 200}), dweight = zeros(DType::kF32, {200});
    ops().rms_norm_backward(context_, dy, x, weight, inverse_rms, Write::kOverwrite, dx, dweight);
    if (i == 0) first = bits(dweight);
    EXPECT_TRUE(bits(dweight) == first);
  }
}

}  // namespace
}  // namespace percheron::kernel_test
