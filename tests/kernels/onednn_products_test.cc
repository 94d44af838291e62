#include "kernels/cpu/onednn_products.h"

#include "tests/kernels/kernel_test.h"

namespace percheron::kernel_test {
namespace {

/// The class serves bf16 on processors that have it; f32 takes the same way on any.
class OneDnnProducts : public KernelTest {
 protected:
  std::unique_ptr<cpu::OneDnnWeight> packed(const ConstTensorView& weight, MatrixUse use) {
    auto result = products_.make_weight(context_, weight.dim(0), weight.dim(1), use);
    PERCHERON_CHECK(result != nullptr, "oneDNN multiplies f32 everywhere");
    products_.pack(context_, weight, *result);
    return result;
  }

  cpu::OneDnnProducts products_{DType::kF32};
};

TEST_F(OneDnnProducts, AgreeWithThePanels) {
  for (const int64_t rows : {1, 16, 17, 128, 129, 300}) {
    const int64_t in = 100, out = 70;
    const Tensor x = random(DType::kF32, {rows, in + 3}), bias = random(DType::kF32, {out});
    const TensorView x_view = x.view().columns(2, in + 2);
    const Tensor weight = random(DType::kF32, {out, in + 5});
    const TensorView weight_view = weight.view().columns(1, in + 1);
    const auto reference = ops().make_packed(context_, out, in, DType::kF32, MatrixUse::kForward);
    ops().pack(context_, weight_view, *reference);
    const auto w = packed(weight_view, MatrixUse::kForward);
    for (const Write write : {Write::kOverwrite, Write::kAdd}) {
      const Tensor expected = random(DType::kF32, {rows, out + 1});
      const Tensor got = from(DType::kF32, {rows, out + 1}, values(expected));
      ops().linear(context_, x_view, *reference, bias, write, expected.view().columns(1, out + 1));
      products_.product(context_, x_view, *w, bias, write, got.view().columns(1, out + 1));
      expect_near(got, values(expected), 2e-6, 10);
    }
    // The way back, without a bias.
    const auto back_reference =
        ops().make_packed(context_, out, in, DType::kF32, MatrixUse::kBackward);
    ops().pack(context_, weight_view, *back_reference);
    const auto back = packed(weight_view, MatrixUse::kBackward);
    const Tensor dy = random(DType::kF32, {rows, out});
    const Tensor expected = poisoned(DType::kF32, {rows, in});
    const Tensor got = poisoned(DType::kF32, {rows, in});
    ops().linear_backward_input(context_, dy, *back_reference, Write::kOverwrite, expected);
    products_.product(context_, dy, *back, ConstTensorView(), Write::kOverwrite, got);
    expect_near(got, values(expected), 2e-6, 10);
    // The weight's gradient, into strided rows.
    const Tensor gradient = random(DType::kF32, {out, in + 2});
    const Tensor got_gradient = from(DType::kF32, {out, in + 2}, values(gradient));
    ops().linear_backward_weight(context_, dy, x_view, gradient.view().columns(2, in + 2));
    products_.weight_gradient(context_, dy, x_view, got_gradient.view().columns(2, in + 2));
    expect_near(got_gradient, values(gradient), 2e-6, 20);
  }
}

TEST_F(OneDnnProducts, ARowsBitsDoNotDependOnTheOtherRows) {
  const int64_t rows = 300, in = 576, out = 192;
  const Tensor x = random(DType::kF32, {rows, in}), weight = random(DType::kF32, {out, in});
  const auto w = packed(weight, MatrixUse::kForward);
  const Tensor y = poisoned(DType::kF32, {rows, out});
  products_.product(context_, x, *w, ConstTensorView(), Write::kOverwrite, y);
  for (const auto& [begin, end] : {std::pair{0, 20}, {1, 300}, {150, 278}, {17, 34}}) {
    const Tensor part = poisoned(DType::kF32, {end - begin, out});
    products_.product(context_, x.view().rows(begin, end), *w, ConstTensorView(), Write::kOverwrite,
                      part);
    EXPECT_TRUE(bits(part) == bits(y.view().rows(begin, end))) << begin << " to " << end;
  }
}

}  // namespace
}  // namespace percheron::kernel_test
