// Weights of 8 bits with a scale a row. The loops over bits are plain ones, which the compiler
// turns into vectors.

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"

namespace percheron::cpu::PERCHERON_ISA {
namespace {

PERCHERON_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
PERCHERON_INLINE float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

struct Int8 {
  static constexpr float kLargest = 127;
  static PERCHERON_INLINE uint8_t code(float x) {
    constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer.
    return static_cast<uint8_t>(bits_of(smaller(larger(x, -kLargest), kLargest) + kRound));
  }
  static PERCHERON_INLINE float value(uint8_t code) {
    return static_cast<float>(static_cast<int8_t>(code));
  }
};

struct E4m3 {
  static constexpr float kLargest = 448;
  static PERCHERON_INLINE uint8_t code(float x) {
    const uint32_t sign = bits_of(x) >> 24 & 0x80u;
    const float size = smaller(float_of(bits_of(x) & 0x7fffffffu), kLargest);
    const uint32_t bits = bits_of(size);
    // The exponent's bias falls from 127 to 7; below 2^-6 the codes are multiples of 2^-9.
    const uint32_t normal = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
    const uint32_t subnormal = bits_of(size + 16384.f) - bits_of(16384.f);
    return static_cast<uint8_t>(sign | (size < 0x1p-6f ? subnormal : normal));
  }
  static PERCHERON_INLINE float value(uint8_t code) {
    const uint32_t size = code & 0x7fu, sign = static_cast<uint32_t>(code & 0x80u) << 24;
    const uint32_t normal = (size << 20) + (120u << 23);
    const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(size)) * 0x1p-9f);
    const uint32_t bits = size < 8 ? subnormal : normal;
    return float_of(sign | (size == 0x7f ? 0x7fc00000u : bits));
  }
};

template <class F>
PERCHERON_INLINE void with_codes(DType dtype, F&& f) {
  if (dtype == DType::kI8) {
    f(Int8{});
  } else {
    f(E4m3{});
  }
}

template <class X>
float largest_of(const X* x, int64_t n) {
  Vec largest = {};
  for_lanes(n, [&](int64_t i, auto width) {
    largest = max(largest, bits_to_float(float_to_bits(load(x + i, width)) & 0x7fffffffu));
  });
  return max_lanes(largest);
}

}  // namespace

void quantize_rows(const ConstRows& weight, int64_t first_column, float* scales,
                   const Rows& codes) {
  with_float(weight.dtype, [&](auto* type) {
    with_codes(codes.dtype, [&](auto kind) {
      using X = Pointee<decltype(type)>;
      using Kind = decltype(kind);
      for_rows(weight.rows, weight.rows * weight.columns, [&](int64_t r) {
        const X* source = row_of<X>(weight, r);
        const float step = largest_of(source, weight.columns) / Kind::kLargest;
        const float scale = step > 0 ? step : 1.f;
        scales[r] = scale;
        uint8_t* target = row_of<uint8_t>(codes, r);
        for (int64_t c = 0; c < codes.columns; c += kChunkColumns) {
          const int64_t n = smaller(kChunkColumns, codes.columns - c);
          float x[kChunkColumns];
          for_lanes(n, [&](int64_t i, auto width) {
            store(x + i, load(source + first_column + c + i, width), width);
          });
          for (int64_t i = 0; i < n; ++i) target[c + i] = Kind::code(x[i] / scale);
        }
      });
    });
  });
}

void dequantize_rows(const ConstRows& codes, const float* scales, const Rows& out) {
  with_activation(out.dtype, [&](auto* type) {
    with_codes(codes.dtype, [&](auto kind) {
      using Y = Pointee<decltype(type)>;
      using Kind = decltype(kind);
      for_chunks(codes.rows, 1, codes.columns, [&](int64_t r, int64_t, int64_t c, int64_t n) {
        const uint8_t* source = row_of<uint8_t>(codes, r) + c;
        Y* target = row_of<Y>(out, r) + c;
        const float scale = scales[r];
        float x[kChunkColumns];
        for (int64_t i = 0; i < n; ++i) x[i] = Kind::value(source[i]) * scale;
        for_lanes(n, [&](int64_t i, auto width) { store(target + i, load(x + i, width), width); });
      });
    });
  });
}

}  // namespace percheron::cpu::PERCHERON_ISA
