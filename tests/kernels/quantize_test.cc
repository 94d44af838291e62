#include <algorithm>
#include <limits>

#include "tests/kernels/kernel_test.h"

namespace percheron::kernel_test {
namespace {

// The value of a code, from the definition of its format.
double value_of_code(DType format, int code) {
  if (format == DType::kI8) return code < 128 ? code : code - 256;
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double size =
      exponent == 0 ? mantissa / 512.0 : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return code >= 128 ? -size : size;
}

double largest_of(DType format) { return format == DType::kI8 ? 127 : 448; }

// The nearest value that a code has; of two as near the one with an even code.
double nearest_value(DType format, double x) {
  double best = 0;
  int best_code = 0;
  for (int code = 0; code < 256; ++code) {
    const double value = value_of_code(format, code);
    if (std::isnan(value) || std::abs(value) > largest_of(format)) continue;
    const double distance = std::abs(value - x), best_distance = std::abs(best - x);
    if (distance < best_distance ||
        (distance == best_distance && code % 2 == 0 && best_code % 2 != 0)) {
      best = value;
      best_code = code;
    }
  }
  return best;
}

class Quantize : public KernelTest {
 protected:
  std::vector<double> code_values(const Tensor& codes) {
    std::vector<double> result;
    for (const char byte : bits(codes)) {
      result.push_back(value_of_code(codes.view().dtype(), static_cast<uint8_t>(byte)));
    }
    return result;
  }
  Tensor codes_of(DType format, std::initializer_list<int64_t> shape,
                  const std::vector<char>& codes) {
    Tensor tensor = poisoned(format, shape);
    upload(codes, tensor.view().data());
    return tensor;
  }
  /// The packed weight, read through a product with the identity, which is exact.
  std::vector<double> packed_values(const Tensor& codes, const Tensor& scales, DType dtype) {
    const int64_t out = codes.view().dim(0), in = codes.view().dim(1);
    const auto packed = ops().make_packed(context_, out, in, dtype, MatrixUse::kForward);
    ops().pack_quantized(context_, codes, scales, *packed);
    std::vector<double> ones(static_cast<size_t>(in * in));
    for (int64_t i = 0; i < in; ++i) ones[static_cast<size_t>(i * in + i)] = 1;
    const Tensor identity = from(dtype, {in, in}, ones), y = poisoned(DType::kF32, {in, out});
    ops().linear(context_, identity, *packed, {}, Write::kOverwrite, y);
    const std::vector<double> transposed = values(y);
    std::vector<double> result(transposed.size());
    for (int64_t r = 0; r < out; ++r) {
      for (int64_t c = 0; c < in; ++c) {
        result[static_cast<size_t>(r * in + c)] = transposed[static_cast<size_t>(c * out + r)];
      }
    }
    return result;
  }
};

double rounded(double value, DType dtype) {
  char bytes[8];
  element_from_double(value, bytes, dtype);
  return element_to_double(bytes, dtype);
}

TEST_F(Quantize, CodesAreTheNearestToTheWeightInStepsOfItsRow) {
  for (const DType format : {DType::kI8, DType::kF8E4m3}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      const Tensor weight = random(dtype, {5, 4133}, 0.02);
      const Tensor scales = poisoned(DType::kF32, {5}), codes = poisoned(format, {5, 4133});
      ops().quantize_rows(context_, weight, 0, scales, codes);
      const std::vector<double> w = values(weight), s = values(scales), q = code_values(codes);
      for (size_t r = 0; r < 5; ++r) {
        double largest = 0;
        for (size_t c = 0; c < 4133; ++c) largest = std::max(largest, std::abs(w[r * 4133 + c]));
        ASSERT_EQ(s[r], rounded(largest / largest_of(format), DType::kF32));
        for (size_t c = 0; c < 4133; ++c) {
          const double steps = rounded(w[r * 4133 + c] / s[r], DType::kF32);
          ASSERT_EQ(q[r * 4133 + c], nearest_value(format, steps)) << steps;
        }
      }
    }
  }
}

// Halves between codes, and what lies beside them: where rounding goes wrong.
TEST_F(Quantize, TiesGoToTheEvenCode) {
  for (const DType format : {DType::kI8, DType::kF8E4m3}) {
    std::vector<double> codes;
    for (int code = 0; code < 256; ++code) {
      const double value = value_of_code(format, code);
      if (!std::isnan(value) && std::abs(value) <= largest_of(format)) codes.push_back(value);
    }
    std::sort(codes.begin(), codes.end());
    std::vector<double> row = codes;
    for (size_t i = 0; i + 1 < codes.size(); ++i) {
      const auto half = static_cast<float>((codes[i] + codes[i + 1]) / 2);
      row.push_back(half);
      row.push_back(std::nextafter(half, 1e9f));
      row.push_back(std::nextafter(half, -1e9f));
    }
    const auto n = static_cast<int64_t>(row.size());  // the largest code is there: the scale is 1
    const Tensor weight = from(DType::kF32, {1, n}, row);
    const Tensor scales = poisoned(DType::kF32, {1}), got = poisoned(format, {1, n});
    ops().quantize_rows(context_, weight, 0, scales, got);
    EXPECT_EQ(values(scales), std::vector<double>{1});
    const std::vector<double> q = code_values(got);
    for (size_t i = 0; i < row.size(); ++i)
      EXPECT_EQ(q[i], nearest_value(format, row[i])) << row[i];
  }
}

TEST_F(Quantize, RowsOfZerosAndOfAlmostNothingHaveAScaleOfOne) {
  std::vector<double> x(3 * 20, 0.0);
  x[20] = 1.4e-45;  // the least of f32: in 127 parts it is 0
  x[40] = -3;
  const Tensor weight = from(DType::kF32, {3, 20}, x);
  for (const DType format : {DType::kI8, DType::kF8E4m3}) {
    const Tensor scales = poisoned(DType::kF32, {3}), codes = poisoned(format, {3, 20});
    ops().quantize_rows(context_, weight, 0, scales, codes);
    const std::vector<double> s = values(scales), q = code_values(codes);
    EXPECT_EQ(s[0], 1);
    EXPECT_EQ(s[1], 1);
    EXPECT_EQ(q[0], 0);
    EXPECT_EQ(q[20], 0);
    EXPECT_EQ(q[40], -largest_of(format));
  }
}

TEST_F(Quantize, APartOfTheColumnsHasTheScalesAndCodesOfTheWhole) {
  const Tensor weight = random(DType::kBf16, {7, 96});
  for (const DType format : {DType::kI8, DType::kF8E4m3}) {
    const Tensor scales = poisoned(DType::kF32, {7}), codes = poisoned(format, {7, 96});
    const Tensor part_scales = poisoned(DType::kF32, {7}), part = poisoned(format, {7, 31});
    ops().quantize_rows(context_, weight, 0, scales, codes);
    ops().quantize_rows(context_, weight, 50, part_scales, part);
    EXPECT_EQ(values(part_scales), values(scales));
    EXPECT_EQ(bits(part), bits(codes.view().columns(50, 81)));
  }
}

TEST_F(Quantize, EveryCodeIsPackedAsItsValueRoundedOnce) {
  std::vector<char> all(256);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<char>(i);
  const std::vector<double> scale_values = {1, 0.37f, 1e-3f};
  const Tensor scales = from(DType::kF32, {3}, scale_values);
  std::vector<char> codes;
  for (int r = 0; r < 3; ++r) codes.insert(codes.end(), all.begin(), all.end());
  for (const DType format : {DType::kI8, DType::kF8E4m3}) {
    std::vector<char> row = codes;
    if (format == DType::kF8E4m3) {
      // A product with the identity spreads what is no number: those codes have their own test.
      for (char& code : row) {
        if ((code & 0x7f) == 0x7f) code = 0;
      }
    }
    const Tensor q = codes_of(format, {3, 256}, row);
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      const std::vector<double> got = packed_values(q, scales, dtype);
      for (size_t i = 0; i < got.size(); ++i) {
        const double value = value_of_code(format, static_cast<uint8_t>(row[i]));
        const double scaled = rounded(value * scale_values[i / 256], DType::kF32);
        EXPECT_EQ(got[i], rounded(scaled, dtype)) << static_cast<int>(row[i]);
      }
    }
  }
}

TEST_F(Quantize, CodesThatAreNoNumbersStayNone) {
  for (const char code : {'\x7f', '\xff'}) {
    const Tensor codes = codes_of(DType::kF8E4m3, {1, 2}, {code, 0x38});
    const Tensor scales = from(DType::kF32, {1}, {1});
    EXPECT_TRUE(std::isnan(packed_values(codes, scales, DType::kF32)[0]));
  }
}

TEST_F(Quantize, OddShapesArePackedToo) {
  for (const int64_t in : {1, 15, 17, 48}) {
    const Tensor weight = random(DType::kF32, {3, in});
    const Tensor scales = poisoned(DType::kF32, {3}), codes = poisoned(DType::kI8, {3, in});
    ops().quantize_rows(context_, weight, 0, scales, codes);
    const std::vector<double> s = values(scales), q = code_values(codes);
    const std::vector<double> got = packed_values(codes, scales, DType::kF32);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i], rounded(q[i] * s[i / static_cast<size_t>(in)], DType::kF32));
    }
  }
}

TEST_F(Quantize, OtherTypesAndShapesAreABug) {
  const Tensor weight = random(DType::kF32, {4, 8}), scales = poisoned(DType::kF32, {4});
  const Tensor codes = poisoned(DType::kI8, {4, 8}), bytes = poisoned(DType::kU8, {4, 8});
  const Tensor few = poisoned(DType::kF32, {3});
  EXPECT_DEATH(ops().quantize_rows(context_, weight, 0, scales, bytes), "\\[4, 8\\] U8");
  EXPECT_DEATH(ops().quantize_rows(context_, weight, 1, scales, codes), "\\[4, 8\\] I8 of");
  EXPECT_DEATH(ops().quantize_rows(context_, weight, 0, few, codes), "\\[3\\] F32");
  const auto packed = ops().make_packed(context_, 4, 9, DType::kF32, MatrixUse::kForward);
  EXPECT_DEATH(ops().pack_quantized(context_, codes, scales, *packed), "\\[4, 8\\]");
}

}  // namespace
}  // namespace percheron::kernel_test
