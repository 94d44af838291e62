#include "tests/kernels/attention_reference.h"
#include "tests/kernels/kernel_test.h"

namespace percheron::kernel_test {
namespace {

std::vector<Case> cases() {
  return {
      {causal({1}), 1, 1, 2},
      {causal({33, 1, 70, 129}), 6, 2, 64},
      {causal({200, 7}), 4, 4, 10},
      {causal({150}), 8, 1, 96},
      {causal({40, 90}), 2, 1, 256},
      {causal({5}), kHeadsPerKeyHeadMax, 1, 6},
      {blocks(100, 7, {3, 3, 0, 50, 99, 100}), 6, 2, 34},
      {blocks(131, 16, {1, 20, 64, 65, 131}), 3, 1, 64},
      {diagonal(75, 1), 3, 1, 64},
      {diagonal(140, 6), 4, 2, 32},
      {sliding({170}, 48), 4, 2, 64},
      {sliding({70, 150}, 30, Origin::kNamed), 4, 1, 96},
      {sliding({20, 300}, 70, Origin::kNamed), 2, 2, 128},
      {diagonal(50, 6, 2), 8, 1, 64},
      {blocks(70, 5, {0, 64, 66}), 4, 2, 128},
      {slots(9, 300), 9, 3, 64},
  };
}

class Attention : public KernelTest, public testing::WithParamInterface<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  double bound() const { return dtype() == DType::kF32 ? 1e-5 : 1e-2; }

  /// Columns before the queries in their matrix: with none, rows are aligned as devices like them.
  static constexpr int64_t kMargin = 4;

  /// Queries, keys and values as slices of one matrix each, as the fused projection gives them.
  struct Operands {
    Tensor fused_q, fused_kv, intervals, dout;
    TensorView q, k, v;
  };
  Operands operands(const Case& c, int64_t margin = kMargin) {
    const int64_t rows = static_cast<int64_t>(c.mask.rows.size()), d = c.head_dim;
    Operands o;
    o.fused_q = random(dtype(), {rows, c.heads * d + margin});
    o.fused_kv = random(dtype(), {c.mask.keys, 2 * c.kv_heads * d});
    o.dout = random(dtype(), {rows, c.heads, d});
    o.q = o.fused_q.view().columns(margin, margin + c.heads * d).heads(d);
    o.k = o.fused_kv.view().columns(0, c.kv_heads * d).heads(d);
    o.v = o.fused_kv.view().columns(c.kv_heads * d, 2 * c.kv_heads * d).heads(d);
    o.intervals = intervals(c.mask);
    poison_unseen(c, o);
    return o;
  }
  Tensor intervals(const Mask& mask) {
    std::vector<double> flat;
    for (const Interval& row : mask.rows) flat.insert(flat.end(), row.begin(), row.end());
    return from(DType::kI32, {static_cast<int64_t>(mask.rows.size()), 4}, flat);
  }

  /// Keys that no row sees become NaN: whoever reads them is found.
  void poison_unseen(const Case& c, const Operands& o) {
    const std::vector<bool> seen = seen_keys(c.mask);
    for (int64_t key = 0; key < c.mask.keys; ++key) {
      if (seen[static_cast<size_t>(key)]) continue;
      const TensorView row = o.fused_kv.view().rows(key, key + 1);
      upload(std::vector<char>(row.bytes(), '\xff'), row.data());
    }
  }

  void expect_forward(const Case& c, int64_t margin) {
    SCOPED_TRACE(c.mask.name + " head_dim " + std::to_string(c.head_dim) + " after " +
                 std::to_string(margin) + " columns");
    const Operands o = operands(c, margin);
    const int64_t rows = static_cast<int64_t>(c.mask.rows.size());
    const float scale = 1.f / std::sqrt(static_cast<float>(c.head_dim));
    const Reference expected =
        attention_reference(c, scale, values(o.q), values(o.k), values(o.v), values(o.dout));
    const Tensor out = poisoned(dtype(), {rows, c.heads, c.head_dim});
    const Tensor log_sum_exp = poisoned(DType::kF32, {rows, c.heads});
    ops().attention(context_, o.q, o.k, o.v, o.intervals, scale, out, log_sum_exp);
    expect_near(out, expected.out, bound());
    expect_near(log_sum_exp, expected.log_sum_exp, bound());
    const Tensor again = poisoned(dtype(), {rows, c.heads, c.head_dim});
    ops().attention(context_, o.q, o.k, o.v, o.intervals, scale, again, TensorView());
    EXPECT_TRUE(bits(again) == bits(out));
  }
};
INSTANTIATE_TEST_SUITE_P(Activations, Attention, testing::Values(DType::kF32, DType::kBf16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST_P(Attention, MatchesTheReferenceForEveryMask) {
  for (const Case& c : cases()) {
    for (const int64_t margin : {kMargin, int64_t{0}}) expect_forward(c, margin);
  }
}

TEST_P(Attention, AFewRowsOfEveryUsualHeadMatchTheReference) {
  for (const int64_t head_dim : {64, 96, 128}) {
    expect_forward({causal({5, 20}), 2, 1, head_dim}, 0);
    expect_forward({diagonal(9, 2), 2, 2, head_dim}, 0);
  }
}

TEST_P(Attention, BackwardMatchesTheReferenceForEveryMask) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.mask.name + " head_dim " + std::to_string(c.head_dim));
    const Operands o = operands(c);
    const int64_t rows = static_cast<int64_t>(c.mask.rows.size());
    const float scale = 1.f / std::sqrt(static_cast<float>(c.head_dim));
    const Reference expected =
        attention_reference(c, scale, values(o.q), values(o.k), values(o.v), values(o.dout));
    const Tensor out = poisoned(dtype(), {rows, c.heads, c.head_dim});
    const Tensor log_sum_exp = poisoned(DType::kF32, {rows, c.heads});
    ops().attention(context_, o.q, o.k, o.v, o.intervals, scale, out, log_sum_exp);
    std::vector<char> first;
    for (int time = 0; time < 2; ++time) {
      const Tensor dq = poisoned(dtype(), {rows, c.heads, c.head_dim});
      const Tensor dkv = zeros(DType::kF32, {c.mask.keys, 2 * c.kv_heads * c.head_dim});
      const int64_t half = c.kv_heads * c.head_dim;
      const TensorView dk = dkv.view().columns(0, half).heads(c.head_dim);
      const TensorView dv = dkv.view().columns(half, 2 * half).heads(c.head_dim);
      ops().attention_backward(context_, o.dout, o.q, o.k, o.v, out, log_sum_exp, o.intervals,
                               scale, dq, dk, dv);
      if (time == 0) {
        expect_near(dq, expected.dq, bound());
        expect_near(dk, expected.dk, bound(), 3);
        expect_near(dv, expected.dv, bound(), 3);
        first = bits(dkv);
        // Keys' gradients are added to: a second call doubles them.
        ops().attention_backward(context_, o.dout, o.q, o.k, o.v, out, log_sum_exp, o.intervals,
                                 scale, dq, dk, dv);
        std::vector<double> twice = expected.dk;
        for (double& value : twice) value *= 2;
        expect_near(dk, twice, bound(), 6);
      } else {
        EXPECT_TRUE(bits(dkv) == first);
      }
    }
  }
}

TEST_P(Attention, ADocumentsBitsDoNotDependOnItsNeighbours) {
  const int64_t heads = 6, kv_heads = 2, d = 64, length = 173, before = 77;
  const auto run = [&](const Mask& mask, const TensorView& q, const TensorView& kv,
                       const TensorView& dout) {
    const int64_t rows = static_cast<int64_t>(mask.rows.size());
    const TensorView k = kv.columns(0, kv_heads * d).heads(d);
    const TensorView v = kv.columns(kv_heads * d, 2 * kv_heads * d).heads(d);
    const Tensor interval = intervals(mask), log_sum_exp = poisoned(DType::kF32, {rows, heads});
    const Tensor out = poisoned(dtype(), {rows, heads, d}),
                 dq = poisoned(dtype(), {rows, heads, d});
    const Tensor dk = zeros(DType::kF32, {mask.keys, kv_heads, d});
    const Tensor dv = zeros(DType::kF32, {mask.keys, kv_heads, d});
    ops().attention(context_, q, k, v, interval, 0.125f, out, log_sum_exp);
    ops().attention_backward(context_, dout, q, k, v, out, log_sum_exp, interval, 0.125f, dq, dk,
                             dv);
    std::vector<std::vector<char>> result;
    for (const Tensor* x : {&out, &dq}) result.push_back(bits(x->view().rows(rows - length, rows)));
    result.push_back(bits(log_sum_exp.view().rows(rows - length, rows)));
    for (const Tensor* x : {&dk, &dv}) {
      result.push_back(bits(x->view().rows(mask.keys - length, mask.keys)));
    }
    return result;
  };
  const Tensor q = random(dtype(), {before + length, heads, d});
  const Tensor dout = random(dtype(), {before + length, heads, d});
  const Tensor kv = random(dtype(), {before + length, 2 * kv_heads * d});
  const auto last = [&](const Tensor& x) { return x.view().rows(before, before + length); };
  const auto expect_same = [&](const Mask& own, const Mask& packed) {
    EXPECT_TRUE(run(own, last(q), last(kv), last(dout)) == run(packed, q, kv, dout)) << own.name;
  };
  expect_same(causal({length}), causal({before, length}));
  expect_same(sliding({length}, 21), sliding({before, length}, 21));
  for (const int64_t window : {21, 70}) {
    expect_same(sliding({length}, window, Origin::kNamed),
                sliding({before, length}, window, Origin::kNamed));
  }
}

// So that verifying drafts gives the tokens that decoding one at a time gives.
TEST_P(Attention, ADecodedRowsBitsDoNotDependOnHowManyAreDecodedTogether) {
  struct Decoding {
    int64_t heads, kv_heads, cached, d, window;
  };
  const int64_t together = 16, full = 1000;
  for (const auto& [heads, kv_heads, cached, d, window] : std::vector<Decoding>{
           {6, 2, 150, 40, full},
           {4, 4, 7, 40, full},
           {11, 1, 63, 40, full},
           {9, 3, 0, 40, full},
           {8, 2, 70, 64, full},
           {6, 2, 75, 64, 13},
           {8, 1, 5, 128, 70},
       }) {
    SCOPED_TRACE(std::to_string(heads) + " heads, " + std::to_string(cached) + " cached, window " +
                 std::to_string(window));
    const Tensor q = random(dtype(), {together, heads, d});
    const Tensor k = random(dtype(), {cached + together, kv_heads, d});
    const Tensor v = random(dtype(), {cached + together, kv_heads, d});
    const auto decode = [&, cached = cached, heads = heads, d = d, window = window](int64_t begin,
                                                                                    int64_t end) {
      Mask mask{"", cached + together, {}};
      for (int64_t i = begin; i < end; ++i) {
        const int64_t seen = cached + i + 1;
        mask.rows.push_back({std::max<int64_t>(0, seen - window), seen, 0,
                             window == full ? 0 : int64_t{kOriginOnly}});
      }
      const Tensor out = poisoned(dtype(), {end - begin, heads, d});
      ops().attention(context_, q.view().rows(begin, end), k, v, intervals(mask), 0.2f, out, {});
      return bits(out);
    };
    std::vector<char> one_by_one;
    for (int64_t i = 0; i < together; ++i) {
      const std::vector<char> row = decode(i, i + 1);
      one_by_one.insert(one_by_one.end(), row.begin(), row.end());
      EXPECT_TRUE(decode(0, i + 1) == one_by_one) << i + 1 << " rows";
    }
  }
}

// A tile would hold more lanes than its scratch.
TEST_P(Attention, MoreHeadsToAKeyHeadThanAllowedAreABug) {
  const int64_t heads = kHeadsPerKeyHeadMax + 1, d = 4;
  const Tensor q = random(dtype(), {1, heads, d}), out = poisoned(dtype(), {1, heads, d});
  const Tensor k = random(dtype(), {1, 1, d}), row = from(DType::kI32, {1, 4}, {0, 1, 0, 0});
  EXPECT_DEATH(ops().attention(context_, q, k, k, row, 0.5f, out, {}), "kHeadsPerKeyHeadMax");
}

TEST_P(Attention, ARowThatSeesNothingGivesZeros) {
  const Tensor q = random(dtype(), {3, 2, 8}), k = random(dtype(), {4, 1, 8});
  const Tensor v = random(dtype(), {4, 1, 8}), dout = random(dtype(), {3, 2, 8});
  const Tensor intervals = from(DType::kI32, {3, 4}, {0, 0, 0, 0, 3, 2, 9, 1, 1, 3, 0, 0});
  const Tensor out = poisoned(dtype(), {3, 2, 8}), log_sum_exp = poisoned(DType::kF32, {3, 2});
  ops().attention(context_, q, k, v, intervals, 1.f, out, log_sum_exp);
  for (const double value : values(out.view().rows(0, 2))) EXPECT_EQ(value, 0);
  for (const double value : values(log_sum_exp.view().rows(0, 2))) EXPECT_EQ(value, -INFINITY);
  const Tensor dq = poisoned(dtype(), {3, 2, 8});
  const Tensor dk = zeros(DType::kF32, {4, 1, 8}), dv = zeros(DType::kF32, {4, 1, 8});
  ops().attention_backward(context_, dout, q, k, v, out, log_sum_exp, intervals, 1.f, dq, dk, dv);
  for (const double value : values(dq.view().rows(0, 2))) EXPECT_EQ(value, 0);
  for (const double value : values(dk)) EXPECT_TRUE(std::isfinite(value));
}

TEST_P(Attention, LargeScoresDoNotOverflow) {
  const Tensor q = random(dtype(), {20, 1, 16}, 100), k = random(dtype(), {20, 1, 16}, 100);
  const Tensor v = random(dtype(), {20, 1, 16});
  const Mask mask = causal({20});
  const Tensor out = poisoned(dtype(), {20, 1, 16}), log_sum_exp = poisoned(DType::kF32, {20, 1});
  ops().attention(context_, q, k, v, intervals(mask), 1.f, out, log_sum_exp);
  const std::vector<double> zero(20 * 16);
  const Reference expected =
      attention_reference({mask, 1, 1, 16}, 1, values(q), values(k), values(v), zero);
  expect_near(out, expected.out, 2e-2);
  expect_near(log_sum_exp, expected.log_sum_exp, 1e-5);
}

}  // namespace
}  // namespace percheron::kernel_test
