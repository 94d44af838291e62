#include <thread>

#include "tests/kernels/kernel_test.h"

namespace percheron::kernel_test {
namespace {

/// A training step's worth of operations on a device with `threads` threads; all results' bytes.
class Step : public KernelTest {
 public:
  explicit Step(int threads) : KernelTest(DeviceOptions{.threads = threads}) {}
  void TestBody() override {}

  std::vector<std::vector<char>> run() {
    const int64_t rows = 333, heads = 4, kv_heads = 2, d = 32, in = 96;
    const Tensor x = random(DType::kF32, {rows, in}), weight = random(DType::kF32, {heads * d, in});
    const Tensor norm = random(DType::kF32, {in});
    const Tensor unit = poisoned(DType::kF32, {rows, in}), rms = poisoned(DType::kF32, {rows});
    ops().rms_norm(context_, x, norm, 1e-5f, unit, rms);
    const auto packed =
        ops().make_packed(context_, heads * d, in, DType::kF32, MatrixUse::kForward);
    ops().pack(context_, weight, *packed);
    const Tensor q = poisoned(DType::kF32, {rows, heads * d});
    ops().linear(context_, unit, *packed, ConstTensorView(), Write::kOverwrite, q);
    const Tensor kv = random(DType::kF32, {rows, 2 * kv_heads * d}), intervals = causal(rows);
    const TensorView k = kv.view().columns(0, kv_heads * d).heads(d);
    const TensorView v = kv.view().columns(kv_heads * d, 2 * kv_heads * d).heads(d);
    const Tensor out = poisoned(DType::kF32, {rows, heads, d});
    const Tensor log_sum_exp = poisoned(DType::kF32, {rows, heads});
    const TensorView q_heads = q.view().heads(d);
    ops().attention(context_, q_heads, k, v, intervals, 0.2f, out, log_sum_exp);
    const Tensor dq = poisoned(DType::kF32, {rows, heads, d});
    const Tensor dk = zeros(DType::kF32, {rows, kv_heads, d}),
                 dv = zeros(DType::kF32, {rows, kv_heads, d});
    ops().attention_backward(context_, out, q_heads, k, v, out, log_sum_exp, intervals, 0.2f, dq,
                             dk, dv);
    const Tensor dweight = zeros(DType::kF32, {heads * d, in});
    const TensorView dq_rows = dq.view().reshaped({rows, heads * d});
    ops().linear_backward_weight(context_, dq_rows, unit, dweight);
    const Tensor dx = poisoned(DType::kF32, {rows, in}), dnorm = zeros(DType::kF32, {in});
    ops().rms_norm_backward(context_, unit, x, norm, rms, Write::kOverwrite, dx, dnorm);
    const Tensor squares = zeros(DType::kF64, {1});
    ops().squared_norm(context_, dweight, squares);
    std::vector<std::vector<char>> results;
    for (const Tensor* t :
         {&q, &out, &log_sum_exp, &dq, &dk, &dv, &dweight, &dx, &dnorm, &squares}) {
      results.push_back(bits(*t));
    }
    return results;
  }

 private:
  Tensor causal(int64_t rows) {
    std::vector<double> flat;
    for (int64_t r = 0; r < rows; ++r) {
      const double begin = r < 100 ? 0 : 100;
      flat.insert(flat.end(), {begin, static_cast<double>(r + 1), 0, 0});
    }
    return from(DType::kI32, {rows, 4}, flat);
  }
};

TEST(Teams, BitsDoNotDependOnTheNumberOfThreads) {
  const auto one = Step(1).run();
  for (const int threads : {2, 3, 5}) EXPECT_TRUE(Step(threads).run() == one) << threads;
}

TEST(Teams, BitsDoNotDependOnWhatRunsBeside) {
  const auto alone = Step(2).run();
  std::vector<std::vector<char>> results[2];
  std::thread first([&] { results[0] = Step(2).run(); });
  std::thread second([&] { results[1] = Step(3).run(); });
  first.join();
  second.join();
  EXPECT_TRUE(results[0] == alone);
  EXPECT_TRUE(results[1] == alone);
}

}  // namespace
}  // namespace percheron::kernel_test
