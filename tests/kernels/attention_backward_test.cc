#include "tests/kernels/attention_reference.h"
#include "tests/kernels/kernel_test.h"

namespace percheron::kernel_test {
namespace {

/// bf16 heads of the sizes and alignment that tensor cores take.
class AttentionBackward : public KernelTest {
 protected:
  struct Operands {
    Tensor q, kv, dout, out, log_sum_exp, intervals;
    TensorView k, v;
    float scale;
    Reference expected;
  };

  /// Random operands, with `out` and log_sum_exp from the reference: the bounds of the gradients
  /// are then those of the backward pass alone. Keys that no row sees are NaN.
  Operands operands(const Case& c) {
    const int64_t rows = static_cast<int64_t>(c.mask.rows.size()), d = c.head_dim;
    const int64_t half = c.kv_heads * d;
    Operands o;
    o.q = random(DType::kBf16, {rows, c.heads, d});
    o.dout = random(DType::kBf16, {rows, c.heads, d});
    o.kv = random(DType::kBf16, {c.mask.keys, 2 * half});
    o.k = o.kv.view().columns(0, half).heads(d);
    o.v = o.kv.view().columns(half, 2 * half).heads(d);
    o.scale = 1.f / std::sqrt(static_cast<float>(d));
    std::vector<double> flat;
    for (const Interval& row : c.mask.rows) flat.insert(flat.end(), row.begin(), row.end());
    o.intervals = from(DType::kI32, {rows, 4}, flat);
    o.expected =
        attention_reference(c, o.scale, values(o.q), values(o.k), values(o.v), values(o.dout));
    o.out = from(DType::kBf16, {rows, c.heads, d}, o.expected.out);
    o.log_sum_exp = from(DType::kF32, {rows, c.heads}, o.expected.log_sum_exp);
    const std::vector<bool> seen = seen_keys(c.mask);
    for (int64_t key = 0; key < c.mask.keys; ++key) {
      if (seen[static_cast<size_t>(key)]) continue;
      const TensorView row = o.kv.view().rows(key, key + 1);
      upload(std::vector<char>(row.bytes(), '\xff'), row.data());
    }
    return o;
  }

  struct Gradients {
    Tensor dq, dkv;
    TensorView dk, dv;
  };
  /// Keys' gradients are added to `before`.
  Gradients gradients(const Case& c, const Operands& o, double before) {
    const int64_t rows = static_cast<int64_t>(c.mask.rows.size()), half = c.kv_heads * c.head_dim;
    Gradients g;
    g.dq = poisoned(DType::kBf16, {rows, c.heads, c.head_dim});
    g.dkv = from(DType::kF32, {c.mask.keys, 2 * half},
                 std::vector<double>(static_cast<size_t>(c.mask.keys * 2 * half), before));
    g.dk = g.dkv.view().columns(0, half).heads(c.head_dim);
    g.dv = g.dkv.view().columns(half, 2 * half).heads(c.head_dim);
    ops().attention_backward(context_, o.dout, o.q, o.k, o.v, o.out, o.log_sum_exp, o.intervals,
                             o.scale, g.dq, g.dk, g.dv);
    return g;
  }

  void expect_within_bounds(const Case& c) {
    SCOPED_TRACE(c.mask.name + " head_dim " + std::to_string(c.head_dim) + ", " +
                 std::to_string(c.heads / c.kv_heads) + " heads to a key head");
    constexpr double kBefore = 0.5;  // exact in any sum of this size
    const Operands o = operands(c);
    const Gradients g = gradients(c, o, kBefore);
    const auto from_before = [&](const TensorView& x) {
      std::vector<double> added = values(x);
      for (double& value : added) value -= kBefore;
      return added;
    };
    EXPECT_EQ(beyond_error(values(g.dq), o.expected.dq, o.expected.dq_error), "") << "dq";
    EXPECT_EQ(beyond_error(from_before(g.dk), o.expected.dk, o.expected.dk_error), "") << "dk";
    EXPECT_EQ(beyond_error(from_before(g.dv), o.expected.dv, o.expected.dv_error), "") << "dv";
  }
};

TEST_F(AttentionBackward, IsWithinTheBoundsOfBf16ForEveryMask) {
  for (const Case& c : std::vector<Case>{
           {causal({33, 1, 70}), 4, 4, 64},
           {causal({40, 90}), 3, 1, 128},
           {causal({75}), 8, 1, 96},
           {blocks(131, 16, {1, 20, 64, 65, 131}), 4, 1, 64},
           {blocks(70, 5, {0, 64, 66}), 4, 2, 128},
           {blocks(40, 16, {7, 40}), 1, 1, 96},
           {diagonal(75, 1), 3, 1, 64},
           {diagonal(70, 6), 8, 2, 64},
           {diagonal(40, 6, 2), 8, 1, 128},
           {diagonal(33, 3, 0), 1, 1, 64},
           {sliding({100, 30}, 20), 4, 2, 64},
           {sliding({60}, 1), 1, 1, 64},
           {slots(7, 150), 8, 1, 96},
       }) {
    expect_within_bounds(c);
  }
}

TEST_F(AttentionBackward, HasTheSameBitsEveryTime) {
  for (const Case& c :
       std::vector<Case>{{causal({70, 45}), 4, 1, 64}, {diagonal(40, 3, 2), 8, 2, 128}}) {
    const Operands o = operands(c);
    const Gradients first = gradients(c, o, 0.5), again = gradients(c, o, 0.5);
    EXPECT_TRUE(bits(again.dq) == bits(first.dq));
    EXPECT_TRUE(bits(again.dkv) == bits(first.dkv));
  }
}

// Small enough for ThreadSanitizer.
TEST_F(AttentionBackward, TwoTinyDocumentsAreWithinTheBoundsOfBf16) {
  expect_within_bounds({causal({3, 5}), 1, 1, 64});
}

// More rows than are planned at once, and key tiles past the first hundred of row tiles.
TEST_F(AttentionBackward, ManyShortDocumentsAreWithinTheBoundsOfBf16) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 180; ++i) lengths.push_back(i % 5 + 1);
  expect_within_bounds({causal(lengths), 1, 1, 64});
}

TEST_F(AttentionBackward, RowsThatSeeNothingHaveAndGiveNoGradient) {
  Mask mask{"gaps", 70, {}};
  for (int64_t i = 0; i < 40; ++i) {
    mask.rows.push_back(i % 3 == 0 ? Interval{9, 9, 30, 2} : Interval{0, 0, i, i + 31});
  }
  const Case c{mask, 2, 1, 64};
  expect_within_bounds(c);
  const Operands o = operands(c);
  const Gradients g = gradients(c, o, 0);
  for (int64_t i = 0; i < 40; i += 3) {
    for (const double value : values(g.dq.view().rows(i, i + 1))) ASSERT_EQ(value, 0) << i;
  }
  Mask nothing{"nothing", 70, std::vector<Interval>(9, Interval{5, 5, 0, 0})};
  const Case dark{nothing, 2, 1, 64};
  const Gradients none = gradients(dark, operands(dark), 0.25);
  for (const double value : values(none.dq)) ASSERT_EQ(value, 0);
  for (const double value : values(none.dkv)) ASSERT_EQ(value, 0.25);
}

TEST_F(AttentionBackward, ADocumentsBitsDoNotDependOnItsNeighbours) {
  const int64_t before = 77, length = 90, heads = 4, kv_heads = 1, d = 64;
  for (const bool slides : {false, true}) {
    SCOPED_TRACE(slides ? "sliding" : "causal");
    const auto mask = [&](const std::vector<int64_t>& lengths) {
      return slides ? sliding(lengths, 37) : causal(lengths);
    };
    const Case packed{mask({before, length}), heads, kv_heads, d};
    const Operands all = operands(packed);
    const Gradients in_pack = gradients(packed, all, 0);

    const Case alone{mask({length}), heads, kv_heads, d};
    Operands own = operands(alone);
    const auto take_last = [&](const Tensor& from, const Tensor& to) {
      upload(bits(from.view().rows(before, before + length)), to.view().data());
    };
    take_last(all.q, own.q);
    take_last(all.dout, own.dout);
    take_last(all.kv, own.kv);
    take_last(all.out, own.out);
    take_last(all.log_sum_exp, own.log_sum_exp);
    const Gradients by_itself = gradients(alone, own, 0);
    EXPECT_TRUE(bits(in_pack.dq.view().rows(before, before + length)) == bits(by_itself.dq));
    EXPECT_TRUE(bits(in_pack.dkv.view().rows(before, before + length)) == bits(by_itself.dkv));
  }
}

}  // namespace
}  // namespace percheron::kernel_test
