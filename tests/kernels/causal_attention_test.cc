#include "tests/kernels/kernel_test.h"

namespace percheron::kernel_test {
namespace {

/// With each kernel that a device may have; on those with one of their own all are the same.
class CausalAttention
    : public KernelTest,
      public testing::WithParamInterface<std::tuple<AttentionKernel, DType, int64_t>> {
 protected:
  CausalAttention() : KernelTest({.causal_attention = std::get<0>(GetParam())}) {}
  DType dtype() const { return std::get<1>(GetParam()); }
  int64_t head_dim() const { return std::get<2>(GetParam()); }

  static constexpr int64_t kHeads = 6, kKeyHeads = 2;

  /// q, k and v as slices of one matrix, as the target's projection gives them.
  TensorView slice(const TensorView& qkv, int64_t first_head, int64_t heads) const {
    return qkv.columns(first_head * head_dim(), (first_head + heads) * head_dim())
        .heads(head_dim());
  }
  Tensor random_qkv(int64_t rows) {
    return random(dtype(), {rows, (kHeads + 2 * kKeyHeads) * head_dim()});
  }

  struct Results {
    Tensor causal, masked;
  };
  /// Both operations on documents of these lengths.
  Results run(const TensorView& qkv, const std::vector<int64_t>& lengths) {
    std::vector<double> offsets = {0}, intervals;
    int64_t longest = 0;
    for (const int64_t length : lengths) {
      const double begin = offsets.back();
      for (int64_t i = 0; i < length; ++i) {
        for (const double x : {begin, begin + static_cast<double>(i) + 1, 0., 0.}) {
          intervals.push_back(x);
        }
      }
      offsets.push_back(begin + static_cast<double>(length));
      longest = std::max(longest, length);
    }
    const int64_t rows = qkv.dim(0);
    const Tensor documents = from(DType::kI32, {static_cast<int64_t>(offsets.size())}, offsets);
    const Tensor mask = from(DType::kI32, {rows, 4}, intervals);
    const TensorView q = slice(qkv, 0, kHeads), k = slice(qkv, kHeads, kKeyHeads);
    const TensorView v = slice(qkv, kHeads + kKeyHeads, kKeyHeads);
    Results results{poisoned(dtype(), {rows, kHeads, head_dim()}),
                    poisoned(dtype(), {rows, kHeads, head_dim()})};
    ops().causal_attention(context_, q, k, v, {documents, longest}, mask, 0.2f, results.causal);
    ops().attention(context_, q, k, v, mask, 0.2f, results.masked, {});
    return results;
  }
};
std::string name_of(
    const testing::TestParamInfo<std::tuple<AttentionKernel, DType, int64_t>>& info) {
  static constexpr const char* kNames[] = {"Own", "Cudnn", "Faster"};
  return kNames[static_cast<int>(std::get<0>(info.param))] +
         std::string(dtype_name(std::get<1>(info.param))) + "Of" +
         std::to_string(std::get<2>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Kernels, CausalAttention,
                         testing::Combine(testing::Values(AttentionKernel::kOwn,
                                                          AttentionKernel::kCudnn,
                                                          AttentionKernel::kFaster),
                                          testing::Values(DType::kF32, DType::kBf16),
                                          testing::Values(64, 128, 20)),
                         name_of);

TEST_P(CausalAttention, IsAttentionWithTheMaskOfPackedDocuments) {
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{1}, {37}, {5, 1, 70, 3}, {0, 9, 0, 0, 20, 0}, {64, 64}}) {
    SCOPED_TRACE(testing::PrintToString(lengths));
    int64_t rows = 0;
    for (const int64_t length : lengths) rows += length;
    const Tensor qkv = random_qkv(rows);
    const Results results = run(qkv, lengths);
    expect_near(results.causal, values(results.masked), dtype() == DType::kF32 ? 1e-5 : 1e-2);
  }
}

TEST_P(CausalAttention, NoRowsAreNoWork) {
  const Tensor qkv = random_qkv(0);
  EXPECT_EQ(values(run(qkv, {0, 0}).causal), std::vector<double>());
}

// Of Percheron's kernel a promise. cuDNN gives none: on a GPU this says whether it holds there.
TEST_P(CausalAttention, ADocumentsBitsDoNotDependOnItsNeighbours) {
  if (std::get<0>(GetParam()) == AttentionKernel::kFaster) GTEST_SKIP() << "packs choose apart";
  const Tensor qkv = random_qkv(150);
  const Results packed = run(qkv, {61, 80, 9});
  const TensorView middle = qkv.view().rows(61, 141);
  EXPECT_TRUE(bits(packed.causal.view().rows(61, 141)) == bits(run(middle, {80}).causal));
}

}  // namespace
}  // namespace percheron::kernel_test
