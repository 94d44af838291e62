#include "tests/kernels/kernel_test.h"

namespace percheron::kernel_test {
namespace {

class Matmul : public KernelTest, public testing::WithParamInterface<DType> {
 protected:
  DType dtype() const { return GetParam(); }

  std::unique_ptr<PackedMatrix> packed(const ConstTensorView& weight, DType dtype, MatrixUse use) {
    auto result = ops().make_packed(context_, weight.dim(0), weight.dim(1), dtype, use);
    ops().pack(context_, weight, *result);
    return result;
  }
};
INSTANTIATE_TEST_SUITE_P(Activations, Matmul, testing::Values(DType::kF32, DType::kBf16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

/// a [m, k] times b, [k, n] or, if transposed, [n, k].
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, size_t m,
                            size_t k, size_t n, bool b_transposed) {
  std::vector<double> c(m * n);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t l = 0; l < k; ++l) {
        c[i * n + j] += a[i * k + l] * (b_transposed ? b[j * k + l] : b[l * n + j]);
      }
    }
  }
  return c;
}

std::vector<double> transposed(const std::vector<double>& x, size_t rows) {
  const size_t columns = x.size() / rows;
  std::vector<double> result(x.size());
  for (size_t i = 0; i < x.size(); ++i) result[i % columns * rows + i / columns] = x[i];
  return result;
}

struct Shape {
  int64_t rows, in, out;
};
const Shape kShapes[] = {{1, 1, 1},    {1, 576, 40}, {2, 33, 65},    {7, 65, 31},
                         {16, 64, 96}, {61, 100, 3}, {133, 258, 97}, {64, 1030, 17}};

TEST_P(Matmul, LinearMultipliesByTheTransposedWeightAndAddsTheBias) {
  for (const auto [rows, in, out] : kShapes) {
    const Tensor x = random(dtype(), {rows, in + 3}), bias = random(DType::kF32, {out});
    const TensorView x_view = x.view().columns(2, in + 2);
    for (const DType weight_dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      const Tensor weight = random(weight_dtype, {out, in});
      const DType product_dtype = dtype() == DType::kBf16 ? DType::kBf16 : DType::kF32;
      if (product_dtype == DType::kBf16 && weight_dtype != DType::kBf16) continue;
      const auto w = packed(weight, product_dtype, MatrixUse::kForward);
      std::vector<double> expected = product(values(x_view), values(weight), rows, in, out, true);
      const double scale = std::sqrt(static_cast<double>(in));
      const Tensor y = poisoned(DType::kF32, {rows, out + 1});
      const TensorView y_view = y.view().columns(1, out + 1);
      ops().linear(context_, x_view, *w, ConstTensorView(), Write::kOverwrite, y_view);
      expect_near(y_view, expected, 2e-6, scale);
      // With a bias, added to what is there, in the activations' dtype.
      const Tensor z = random(dtype(), {rows, out});
      const std::vector<double> before = values(z), b = values(bias);
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] += before[i] + b[i % static_cast<size_t>(out)];
      }
      ops().linear(context_, x_view, *w, bias, Write::kAdd, z);
      expect_near(z, expected, bound_of(dtype()), scale);
    }
  }
}

TEST_P(Matmul, BackwardInputMultipliesByTheWeight) {
  for (const auto [rows, in, out] : kShapes) {
    const Tensor dy = random(dtype(), {rows, out}), weight = random(dtype(), {out, in});
    const auto w = packed(weight, dtype(), MatrixUse::kBackward);
    std::vector<double> expected = product(values(dy), values(weight), rows, out, in, false);
    const double scale = std::sqrt(static_cast<double>(out));
    const Tensor dx = poisoned(dtype(), {rows, in});
    ops().linear_backward_input(context_, dy, *w, Write::kOverwrite, dx);
    expect_near(dx, expected, bound_of(dtype()), scale);
    const Tensor sum = random(DType::kF32, {rows, in + 2});
    const TensorView view = sum.view().columns(1, in + 1);
    const std::vector<double> before = values(view);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
    ops().linear_backward_input(context_, dy, *w, Write::kAdd, view);
    expect_near(view, expected, 2e-6, scale);
  }
}

TEST_P(Matmul, BackwardWeightAddsTheOuterProducts) {
  for (const auto [rows, in, out] : kShapes) {
    const Tensor dy = random(dtype(), {rows, out + 4}), x = random(dtype(), {rows, in + 1});
    const TensorView dy_view = dy.view().columns(1, out + 1), x_view = x.view().columns(1, in + 1);
    const Tensor dweight = random(DType::kF32, {out, in + 5});
    const TensorView view = dweight.view().columns(2, in + 2);
    std::vector<double> expected = values(view);
    const std::vector<double> added =
        product(transposed(values(dy_view), rows), values(x_view), out, rows, in, false);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += added[i];
    ops().linear_backward_weight(context_, dy_view, x_view, view);
    expect_near(view, expected, 2e-6, std::sqrt(static_cast<double>(rows)));
  }
}

TEST_P(Matmul, ARowsProductDoesNotDependOnTheOtherRows) {
  for (const auto& [in, out] : {std::pair{576, 960}, {576, 576}, {100, 77}, {1536, 576}}) {
    const int64_t rows = 300;
    const Tensor x = random(dtype(), {rows, in}), weight = random(dtype(), {out, in});
    const auto forward = packed(weight, dtype(), MatrixUse::kForward);
    const auto backward = packed(weight, dtype(), MatrixUse::kBackward);
    const Tensor y = poisoned(dtype(), {rows, out}), dx = poisoned(dtype(), {rows, in});
    ops().linear(context_, x, *forward, ConstTensorView(), Write::kOverwrite, y);
    ops().linear_backward_input(context_, y, *backward, Write::kOverwrite, dx);
    for (const auto& [begin, end] : {std::pair{0, 100}, {1, 300}, {150, 157}, {17, 18}, {33, 64}}) {
      const Tensor part = poisoned(dtype(), {end - begin, out});
      ops().linear(context_, x.view().rows(begin, end), *forward, ConstTensorView(),
                   Write::kOverwrite, part);
      EXPECT_TRUE(bits(part) == bits(y.view().rows(begin, end)))
          << in << "->" << out << " " << begin;
      const Tensor dpart = poisoned(dtype(), {end - begin, in});
      ops().linear_backward_input(context_, y.view().rows(begin, end), *backward, Write::kOverwrite,
                                  dpart);
      EXPECT_TRUE(bits(dpart) == bits(dx.view().rows(begin, end)))
          << out << "->" << in << " " << begin;
    }
  }
}

// Decoding may have products of its own: they must be right, and a row's bits its own.
TEST_P(Matmul, DecodingIsRightAndARowDoesNotDependOnTheOtherRows) {
  for (const auto& [in, out] : {std::pair{576, 960}, {100, 77}, {6, 1}, {77, 100}, {1536, 576}}) {
    SCOPED_TRACE(std::to_string(in) + " to " + std::to_string(out));
    const int64_t rows = 21;
    const Tensor x = random(dtype(), {rows, in + 2}), bias = random(DType::kF32, {out});
    const TensorView x_view = x.view().columns(1, in + 1);
    Tensor weight = random(dtype(), {out, in});
    const auto matrix = packed(weight, dtype(), MatrixUse::kForward);
    const DecodingScope decoding(context_);
    for (const Write write : {Write::kOverwrite, Write::kAdd}) {
      const Tensor y = random(dtype(), {rows, out + 1});
      const TensorView y_view = y.view().columns(1, out + 1);
      const std::vector<double> before = values(y_view), offset = values(bias);
      std::vector<double> expected = product(values(x_view), values(weight), rows, in, out, true);
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] += offset[i % static_cast<size_t>(out)];
        if (write == Write::kAdd) expected[i] += before[i];
      }
      ops().linear(context_, x_view, *matrix, bias, write, y_view);
      expect_near(y_view, expected, bound_of(dtype()), std::sqrt(static_cast<double>(in)));
    }
    const Tensor y = poisoned(DType::kF32, {rows, out});
    ops().linear(context_, x_view, *matrix, {}, Write::kOverwrite, y);
    for (const auto& [begin, end] : {std::pair{0, 1}, {1, 3}, {4, 20}, {12, 21}}) {
      const Tensor part = poisoned(DType::kF32, {end - begin, out});
      ops().linear(context_, x_view.rows(begin, end), *matrix, {}, Write::kOverwrite, part);
      EXPECT_TRUE(bits(part) == bits(y.view().rows(begin, end))) << begin << " to " << end;
    }
    // A weight that is packed anew is read anew.
    weight = random(dtype(), {out, in});
    ops().pack(context_, weight, *matrix);
    ops().linear(context_, x_view, *matrix, {}, Write::kOverwrite, y);
    expect_near(y, product(values(x_view), values(weight), rows, in, out, true), 2e-6,
                std::sqrt(static_cast<double>(in)));
  }
}

TEST_P(Matmul, ProductsHaveTheSameBitsTwice) {
  const Tensor dy = random(dtype(), {1000, 100}), x = random(dtype(), {1000, 64});
  std::vector<char> first;
  for (int i = 0; i < 3; ++i) {
    const Tensor dweight = zeros(DType::kF32, {100, 64});
    ops().linear_backward_weight(context_, dy, x, dweight);
    if (i == 0) first = bits(dweight);
    EXPECT_TRUE(bits(dweight) == first);
  }
}

TEST_P(Matmul, NoRowsAreNoWork) {
  const Tensor weight = random(dtype(), {4, 3}), x = random(dtype(), {2, 3});
  const auto w = packed(weight, dtype(), MatrixUse::kForward);
  const Tensor y = poisoned(dtype(), {2, 4}), dweight = zeros(DType::kF32, {4, 3});
  ops().linear(context_, x.view().rows(0, 0), *w, ConstTensorView(), Write::kOverwrite,
               y.view().rows(0, 0));
  ops().linear_backward_weight(context_, y.view().rows(0, 0), x.view().rows(0, 0), dweight);
  EXPECT_EQ(values(dweight), std::vector<double>(12));
}

using PlainMatmul = KernelTest;

TEST_F(PlainMatmul, TransposesAndScales) {
  using T = Ops::Transpose;
  const size_t m = 37, k = 51, n = 20;
  const Tensor a = random(DType::kF32, {37, 51}), b = random(DType::kF32, {51, 20});
  const Tensor a_t = from(DType::kF32, {51, 37}, transposed(values(a), m));
  const Tensor b_t = from(DType::kF32, {20, 51}, transposed(values(b), k));
  const std::vector<double> ab = product(values(a), values(b), m, k, n, false);
  for (const auto& [x, x_transpose] : {std::pair{&a, T::kNo}, {&a_t, T::kYes}}) {
    for (const auto& [y, y_transpose] : {std::pair{&b, T::kNo}, {&b_t, T::kYes}}) {
      const Tensor c = random(DType::kF32, {37, 20});
      std::vector<double> expected = values(c);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] = 0.5 * ab[i] - 2 * expected[i];
      ops().matmul(context_, 0.5f, *x, x_transpose, *y, y_transpose, -2.f, c);
      expect_near(c, expected, 1e-6, 10);
      const Tensor fresh = poisoned(DType::kF32, {37, 20});
      ops().matmul(context_, 1.f, *x, x_transpose, *y, y_transpose, 0.f, fresh);
      expect_near(fresh, ab, 1e-6, 10);
    }
  }
}

}  // namespace
}  // namespace percheron::kernel_test
