#include "kernels/tensor.h"

#include <algorithm>
#include <bit>

namespace percheron {
namespace {

// Whether any of `bits` has every bit of `mask`: an exponent of ones is a NaN or an infinity.
template <class Bits>
int64_t first_with_mask(const void* data, int64_t count, Bits mask) {
  const Bits* bits = static_cast<const Bits*>(data);
  constexpr int64_t kBlock = 4096;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    // A count without an early exit is what compilers turn into vector code.
    int64_t found = 0;
    for (int64_t i = begin; i < end; ++i) found += (bits[i] & mask) == mask ? 1 : 0;
    if (found == 0) continue;
    for (int64_t i = begin; i < end; ++i) {
      if ((bits[i] & mask) == mask) return i;
    }
  }
  return -1;
}

}  // namespace

size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32: return 4;
    case DType::kBf16:
    case DType::kF16: return 2;
    case DType::kU8:
    case DType::kBool:
    case DType::kI8:
    case DType::kF8E4m3: return 1;
  }
  PERCHERON_CHECK(false, "unknown dtype");
}

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kBf16: return "BF16";
    case DType::kF16: return "F16";
    case DType::kF64: return "F64";
    case DType::kI64: return "I64";
    case DType::kI32: return "I32";
    case DType::kU32: return "U32";
    case DType::kU8: return "U8";
    case DType::kBool: return "BOOL";
    case DType::kI8: return "I8";
    case DType::kF8E4m3: return "F8_E4M3";
  }
  PERCHERON_CHECK(false, "unknown dtype");
}

std::string describe(const ConstTensorView& view) {
  std::string text = "[";
  for (int i = 0; i < view.rank(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(view.dim(i));
  }
  text += "] ";
  text += dtype_name(view.dtype());
  return text;
}

int64_t first_not_finite(const ConstTensorView& view) {
  PERCHERON_CHECK(view.contiguous(), "only a contiguous tensor is scanned");
  switch (view.dtype()) {
    case DType::kF32: return first_with_mask<uint32_t>(view.data(), view.elements(), 0x7f800000u);
    case DType::kBf16: return first_with_mask<uint16_t>(view.data(), view.elements(), 0x7f80u);
    case DType::kF16: return first_with_mask<uint16_t>(view.data(), view.elements(), 0x7c00u);
    default: PERCHERON_CHECK(false, "only floats are scanned");
  }
  return -1;
}

uint16_t bf16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float float_from_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t f16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Adding one half places the subnormal's last bit at the float's last bit: the sum rounds it.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float float_from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

}  // namespace percheron
