#include "tests/kernels/kernel_test.h"

namespace percheron::kernel_test {
namespace {

using Rows = KernelTest;

TEST_F(Rows, CopyConvertsBetweenEveryPairOfFloats) {
  for (const DType source_dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const DType target_dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      const Tensor source = random(source_dtype, {7, 53});
      const Tensor target = poisoned(target_dtype, {7, 53});
      ops().copy(context_, source, target);
      std::vector<double> expected = values(source);
      for (double& value : expected) {
        char bytes[8];
        element_from_double(value, bytes, target_dtype);
        value = element_to_double(bytes, target_dtype);
      }
      EXPECT_EQ(values(target), expected) << dtype_name(source_dtype) << dtype_name(target_dtype);
    }
  }
}

TEST_F(Rows, CopyKeepsWhatLiesBesideStridedViews) {
  const Tensor source = random(DType::kF32, {9, 40}), target = zeros(DType::kBf16, {9, 60});
  ops().copy(context_, source.view().columns(3, 20), target.view().columns(30, 47));
  expect_near(target.view().columns(30, 47), values(source.view().columns(3, 20)), 1.0 / 256);
  for (const double value : values(target.view().columns(0, 30))) EXPECT_EQ(value, 0);
  for (const double value : values(target.view().columns(47, 60))) EXPECT_EQ(value, 0);
  ops().fill_zero(context_, target.view().columns(31, 60));
  for (const double value : values(target.view().columns(31, 60))) EXPECT_EQ(value, 0);
  EXPECT_NE(values(target)[30], 0);
}

TEST_F(Rows, CopyAndAddMixContiguousAndStridedViews) {
  const Tensor wide = random(DType::kBf16, {9, 40}), narrow = poisoned(DType::kF32, {9, 17});
  const TensorView part = wide.view().columns(3, 20);
  ops().copy(context_, part, narrow);
  EXPECT_EQ(values(narrow), values(part));
  ops().add(context_, part, narrow);
  std::vector<double> twice = values(part);
  for (double& value : twice) value *= 2;
  EXPECT_EQ(values(narrow), twice);
}

TEST_F(Rows, NarrowingKeepsNansInfinitiesAndSubnormals) {
  const double inf = INFINITY;
  const std::vector<double> x = {inf, -inf, 65520, 65519, 1e-7, 6e-8, 2e-8, -0.0, 1e5, 3.3895e38};
  const Tensor source = from(DType::kF32, {10}, x);
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    const Tensor target = poisoned(dtype, {10});
    ops().copy(context_, source, target);
    std::vector<double> expected = x;
    for (double& value : expected) {
      char bytes[8];
      element_from_double(value, bytes, dtype);
      value = element_to_double(bytes, dtype);
    }
    EXPECT_EQ(values(target), expected);
  }
  const Tensor nans = poisoned(DType::kF32, {10}), narrow = zeros(DType::kBf16, {10});
  ops().copy(context_, nans, narrow);
  for (const double value : values(narrow)) EXPECT_TRUE(std::isnan(value));
}

TEST_F(Rows, AddMixesDtypes) {
  const Tensor x = random(DType::kBf16, {11, 29}), y = random(DType::kF32, {11, 29});
  std::vector<double> expected = values(y);
  const std::vector<double> added = values(x);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += added[i];
  ops().add(context_, x, y);
  expect_near(y, expected, 1e-7);
}

TEST_F(Rows, GatherConvertsAndGivesZerosForNegativeIndices) {
  const Tensor table = random(DType::kBf16, {10, 33});
  const Tensor rows = from(DType::kI32, {5}, {9, -1, 0, 3, 3});
  const std::vector<double> from_table = values(table);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const Tensor out = poisoned(dtype, {5, 40});
    ops().gather_rows(context_, table, rows, out.view().columns(7, 40));
    const std::vector<double> got = values(out.view().columns(7, 40));
    const int64_t index[] = {9, -1, 0, 3, 3};
    for (size_t i = 0; i < got.size(); ++i) {
      const int64_t row = index[i / 33];
      EXPECT_EQ(got[i], row < 0 ? 0 : from_table[static_cast<size_t>(row) * 33 + i % 33]);
    }
  }
}

TEST_F(Rows, ScatterAddsToTheNamedRowsOnly) {
  const Tensor x = random(DType::kBf16, {3, 20}), out = random(DType::kF32, {6, 20});
  const Tensor rows = from(DType::kI32, {3}, {5, -7, 2});
  std::vector<double> expected = values(out);
  const std::vector<double> added = values(x);
  for (size_t i = 0; i < 20; ++i) {
    expected[5 * 20 + i] += added[i];
    expected[2 * 20 + i] += added[2 * 20 + i];
  }
  ops().scatter_add_rows(context_, x, rows, out);
  expect_near(out, expected, 1e-7);
}

// Another dtype's bits would be read as f16 or bf16.
TEST_F(Rows, OtherDtypesAreABug) {
  const Tensor integers = from(DType::kI32, {2, 8}, std::vector<double>(16, 1));
  const Tensor floats = poisoned(DType::kF32, {2, 8}), half = poisoned(DType::kF16, {2, 8});
  const Tensor rows = from(DType::kI32, {2}, {0, 1}), norm = poisoned(DType::kF32, {8});
  EXPECT_DEATH(ops().copy(context_, integers, floats), "I32");
  EXPECT_DEATH(ops().add(context_, integers, floats), "I32");
  EXPECT_DEATH(ops().gather_rows(context_, integers, rows, floats), "\\[2, 8\\] I32");
  EXPECT_DEATH(ops().gather_rows(context_, floats, rows, half), "\\[2, 8\\] F16");
  EXPECT_DEATH(ops().scatter_add_rows(context_, half, rows, floats), "\\[2, 8\\] F16");
  EXPECT_DEATH(ops().rms_norm(context_, half, norm, 1e-5f, floats, {}), "\\[2, 8\\] F16");
}

}  // namespace
}  // namespace percheron::kernel_test
