#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"
#include "tests/test_device.h"
#include "tests/test_seed.h"

namespace percheron::kernel_test {

constexpr uint64_t kUsualSeed = 20240607;

/// A relative error that is fair to the dtype: a few units in the last place.
inline double bound_of(DType dtype) { return dtype == DType::kF32 ? 2e-6 : 1.0 / 256 * 1.01; }

inline double element_to_double(const char* p, DType dtype) {
  const auto read = [&](auto value) {
    std::memcpy(&value, p, sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::kF32: return read(float{});
    case DType::kF64: return read(double{});
    case DType::kI32: return read(int32_t{});
    case DType::kBf16: return float_from_bf16(read(uint16_t{}));
    case DType::kF16: return float_from_f16(read(uint16_t{}));
    default: PERCHERON_CHECK(false, "no such test dtype");
  }
}

inline void element_from_double(double value, char* p, DType dtype) {
  const auto write = [&](auto bits) { std::memcpy(p, &bits, sizeof bits); };
  switch (dtype) {
    case DType::kF32: return write(static_cast<float>(value));
    case DType::kF64: return write(value);
    case DType::kI32: return write(static_cast<int32_t>(value));
    case DType::kBf16: return write(bf16_from_float(static_cast<float>(value)));
    case DType::kF16: return write(f16_from_float(static_cast<float>(value)));
    default: PERCHERON_CHECK(false, "no such test dtype");
  }
}

/// A device bound to the test's thread, with its context and random tensors.
class KernelTest : public testing::Test {
 protected:
  KernelTest() : KernelTest(DeviceOptions{}) {}
  explicit KernelTest(const DeviceOptions& options)
      : device_(open(options)),
        stream_(device_->make_stream()),
        arena_(*device_),
        context_{*device_, *stream_, arena_},
        seed_(kUsualSeed),
        random_(seed_.value()) {
    device_->bind_thread();
  }

  void TearDown() override {
    const Status status = stream_->wait_idle();
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(arena_.bytes_in_use(), 0u) << "an operation kept scratch memory";
  }

  const Ops& ops() const { return device_->ops(); }

  /// A tensor of NaNs: what an operation leaves unwritten is found.
  Tensor poisoned(DType dtype, std::initializer_list<int64_t> shape) {
    auto tensor = device_->make_tensor(dtype, shape);
    PERCHERON_CHECK(tensor.ok(), tensor.status().message());
    const std::vector<char> bytes(tensor->view().bytes(), '\xff');
    upload(bytes, tensor->view().data());
    return std::move(*tensor);
  }
  Tensor zeros(DType dtype, std::initializer_list<int64_t> shape) {
    Tensor tensor = poisoned(dtype, shape);
    ops().fill_zero(context_, tensor);
    return tensor;
  }
  Tensor from(DType dtype, std::initializer_list<int64_t> shape,
              const std::vector<double>& values) {
    Tensor tensor = poisoned(dtype, shape);
    write(tensor, values);
    return tensor;
  }
  /// Normal values times `scale`.
  Tensor random(DType dtype, std::initializer_list<int64_t> shape, double scale = 1) {
    Tensor tensor = poisoned(dtype, shape);
    std::vector<double> values(static_cast<size_t>(tensor.view().elements()));
    for (double& value : values) value = random_.normal() * scale;
    write(tensor, values);
    return tensor;
  }

  /// Writes a contiguous tensor.
  void write(const TensorView& view, const std::vector<double>& values) {
    const size_t size = dtype_bytes(view.dtype());
    PERCHERON_CHECK(view.bytes() == values.size() * size && view.contiguous(), "test bug");
    std::vector<char> bytes(view.bytes());
    for (size_t i = 0; i < values.size(); ++i) {
      element_from_double(values[i], bytes.data() + i * size, view.dtype());
    }
    upload(bytes, view.data());
  }

  /// The elements in order of a tensor of any rank, possibly strided.
  std::vector<double> values(const ConstTensorView& view) {
    const std::vector<char> bytes = bits(view);
    const size_t size = dtype_bytes(view.dtype());
    std::vector<double> result(bytes.size() / size);
    for (size_t i = 0; i < result.size(); ++i) {
      result[i] = element_to_double(bytes.data() + i * size, view.dtype());
    }
    return result;
  }

  /// The elements' bytes in order, to compare bit by bit.
  std::vector<char> bits(const ConstTensorView& view) {
    const size_t size = dtype_bytes(view.dtype());
    const int64_t columns = view.rank() == 0 ? 1 : view.dim(-1);
    const int64_t rows = columns == 0 ? 0 : view.elements() / columns;
    std::vector<char> result(view.bytes());
    for (int64_t r = 0; r < rows; ++r) {
      int64_t offset = 0, rest = r;
      for (int i = view.rank() - 2; i >= 0; --i) {
        offset += rest % view.dim(i) * view.stride(i);
        rest /= view.dim(i);
      }
      const size_t row_bytes = static_cast<size_t>(columns) * size;
      device_->copy_bytes(
          *stream_, result.data() + static_cast<size_t>(r) * row_bytes,
          static_cast<const char*>(view.data()) + offset * static_cast<int64_t>(size), row_bytes);
    }
    const Status status = stream_->wait_idle();
    EXPECT_TRUE(status.ok()) << status.message();
    return result;
  }

  /// Expects |actual - expected| <= bound * (|expected| + scale) everywhere; NaN never passes.
  void expect_near(const ConstTensorView& actual, const std::vector<double>& expected, double bound,
                   double scale = 1) {
    const std::vector<double> got = values(actual);
    ASSERT_EQ(got.size(), expected.size());
    double worst = -1;
    size_t where = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      double error = std::abs(got[i] - expected[i]) / (std::abs(expected[i]) + scale);
      if (got[i] == expected[i]) error = 0;  // Infinities too.
      if (!(error <= worst)) {
        worst = error;
        where = i;
        if (std::isnan(error)) break;
      }
    }
    if (!got.empty()) {
      EXPECT_LE(worst, bound) << "at element " << where << ": " << got[where] << " instead of "
                              << expected[where];
    }
  }

  void upload(const std::vector<char>& bytes, void* destination) {
    device_->copy_bytes(*stream_, destination, bytes.data(), bytes.size());
    const Status status = stream_->wait_idle();
    PERCHERON_CHECK(status.ok(), status.message());
  }

  static std::unique_ptr<Device> open(const DeviceOptions& options) {
    auto device = open_device(test_device(), options);
    PERCHERON_CHECK(device.ok(), device.status().message());
    return std::move(*device);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  Context context_;
  TestSeed seed_;
  Random random_;
};

}  // namespace percheron::kernel_test
