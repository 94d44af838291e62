#include "kernels/tensor.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace percheron {
namespace {

TEST(TensorView, SlicesKeepTheRowStride) {
  std::vector<float> x(6 * 10);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const TensorView view(x.data(), DType::kF32, {6, 10});
  EXPECT_TRUE(view.contiguous());
  const TensorView part = view.rows(2, 5).columns(4, 8);
  EXPECT_FALSE(part.contiguous());
  EXPECT_EQ(part.as<float>()[0], 24);
  const TensorView heads = part.heads(2);
  EXPECT_EQ(heads.rank(), 3);
  EXPECT_EQ(heads.dim(1), 2);
  EXPECT_EQ(heads.as<float>()[heads.stride(0) + heads.stride(1)], 36);
  EXPECT_EQ(describe(heads), "[3, 2, 2] F32");
  EXPECT_FALSE(TensorView().present());
  EXPECT_EQ(view.reshaped({60}).dim(-1), 60);
}

TEST(TensorView, DTypesHaveTheNamesAndSizesOfSafetensors) {
  EXPECT_EQ(dtype_name(DType::kBf16), "BF16");
  EXPECT_EQ(dtype_name(DType::kBool), "BOOL");
  EXPECT_EQ(dtype_bytes(DType::kF64), 8u);
  EXPECT_EQ(dtype_bytes(DType::kU8), 1u);
}

TEST(Bf16, EveryBitPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = float_from_bf16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(value))));
    } else {
      EXPECT_EQ(bf16_from_float(value), bits);
    }
  }
}

TEST(F16, EveryBitPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = float_from_f16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(float_from_f16(f16_from_float(value))));
    } else {
      EXPECT_EQ(f16_from_float(value), bits);
    }
  }
}

TEST(F16, RoundsToNearestEvenAsTheCompilerDoes) {
  for (uint32_t bits = 0; bits < 0x80000000u; bits += 4099) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    if (std::isnan(value)) continue;
    const _Float16 half = static_cast<_Float16>(value);
    uint16_t expected;
    std::memcpy(&expected, &half, sizeof expected);
    EXPECT_EQ(f16_from_float(value), expected) << value;
  }
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(bf16_from_float(1.00390625f), 0x3f80);  // Half way, even below.
  EXPECT_EQ(bf16_from_float(1.01171875f), 0x3f82);  // Half way, even above.
  EXPECT_EQ(bf16_from_float(1.00390637f), 0x3f81);
  EXPECT_EQ(bf16_from_float(3.4e38f), 0x7f80);  // Overflows to infinity.
}

}  // namespace
}  // namespace percheron
