#pragma once

// One SIMD register of floats, with the vector extensions of GCC and Clang, and the loads, stores
// and functions that the kernels need. Only for sources compiled once per instruction set: see
// kernel_table.h for why everything here is internal.

#include <cstdint>
#include <type_traits>
#include <utility>

#if PERCHERON_VECTOR_BYTES == 32
#include <immintrin.h>
#endif

#include "kernels/cpu/kernel_table.h"

#ifndef PERCHERON_ISA
#error "compile with -DPERCHERON_ISA=<namespace> -DPERCHERON_VECTOR_BYTES=<16, 32 or 64>"
#endif

#define PERCHERON_INLINE inline __attribute__((always_inline))

namespace percheron::cpu::PERCHERON_ISA {
namespace {

constexpr int kLanes = PERCHERON_VECTOR_BYTES / 4;

using Vec = float __attribute__((vector_size(PERCHERON_VECTOR_BYTES)));
using IntVec = int32_t __attribute__((vector_size(PERCHERON_VECTOR_BYTES)));
using UintVec = uint32_t __attribute__((vector_size(PERCHERON_VECTOR_BYTES)));
using HalfVec = uint16_t __attribute__((vector_size(PERCHERON_VECTOR_BYTES / 2)));

template <class P>
using Pointee = std::remove_pointer_t<P>;

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

/// How many lanes a load or store touches: all, or `count` (a row's last elements).
struct Full {
  static constexpr int count = kLanes;
};
struct Part {
  int count;
};

/// Calls f(i, Full{}) for each whole vector of n elements, then f(i, Part{rest}) if there is a
/// rest.
template <class F>
PERCHERON_INLINE void for_lanes(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, Full{});
  if (i < n) f(i, Part{static_cast<int>(n - i)});
}

template <class T>
PERCHERON_INLINE T smaller(T a, T b) {
  return b < a ? b : a;
}
template <class T>
PERCHERON_INLINE T larger(T a, T b) {
  return a < b ? b : a;
}

// Minus zero, unlike plus, changes nothing: the compiler drops it.
PERCHERON_INLINE Vec splat(float x) { return x - Vec{}; }
// If one is no number, the second is taken.
PERCHERON_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
PERCHERON_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
PERCHERON_INLINE Vec bits_to_float(UintVec x) { return reinterpret_cast<Vec>(x); }
PERCHERON_INLINE UintVec float_to_bits(Vec x) { return reinterpret_cast<UintVec>(x); }

template <class V>
PERCHERON_INLINE V load_raw(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

PERCHERON_INLINE Vec widen(HalfVec bits) {
#if PERCHERON_VECTOR_BYTES == 32
  // GCC makes two halves of the conversion.
  const UintVec wide =
      reinterpret_cast<UintVec>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(bits)));
#else
  const UintVec wide = __builtin_convertvector(bits, UintVec);
#endif
  return bits_to_float(wide << 16);
}

/// Rounds to nearest even; a NaN stays one.
PERCHERON_INLINE HalfVec narrow(Vec x) {
  const UintVec bits = float_to_bits(x);
  const UintVec rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const UintVec nan = (bits >> 16) | 0x40u;
  return __builtin_convertvector(x == x ? rounded : nan, HalfVec);
}

PERCHERON_INLINE float widen_f16(uint16_t bits) {
  _Float16 half;
  __builtin_memcpy(&half, &bits, sizeof half);
  return static_cast<float>(half);
}
PERCHERON_INLINE uint16_t narrow_f16(float x) {
  const _Float16 half = static_cast<_Float16>(x);
  uint16_t bits;
  __builtin_memcpy(&bits, &half, sizeof bits);
  return bits;
}

template <class Width>
PERCHERON_INLINE Vec load(const float* p, Width width) {
  if constexpr (std::is_same_v<Width, Full>) {
    return load_raw<Vec>(p);
  } else {
    Vec v = {};
    for (int i = 0; i < width.count; ++i) v[i] = p[i];
    return v;
  }
}
template <class Width>
PERCHERON_INLINE Vec load(const Bf16* p, Width width) {
  if constexpr (std::is_same_v<Width, Full>) {
    return widen(load_raw<HalfVec>(p));
  } else {
    HalfVec v = {};
    for (int i = 0; i < width.count; ++i) v[i] = p[i].bits;
    return widen(v);
  }
}
template <class Width>
PERCHERON_INLINE Vec load(const F16* p, Width width) {
  Vec v = {};
  for (int i = 0; i < width.count; ++i) v[i] = widen_f16(p[i].bits);
  return v;
}

template <class Width>
PERCHERON_INLINE void store(float* p, Vec v, Width width) {
  if constexpr (std::is_same_v<Width, Full>) {
    __builtin_memcpy(p, &v, sizeof v);
  } else {
    for (int i = 0; i < width.count; ++i) p[i] = v[i];
  }
}
template <class Width>
PERCHERON_INLINE void store(Bf16* p, Vec v, Width width) {
  const HalfVec half = narrow(v);
  if constexpr (std::is_same_v<Width, Full>) {
    __builtin_memcpy(p, &half, sizeof half);
  } else {
    for (int i = 0; i < width.count; ++i) p[i].bits = half[i];
  }
}
template <class Width>
PERCHERON_INLINE void store(F16* p, Vec v, Width width) {
  for (int i = 0; i < width.count; ++i) p[i].bits = narrow_f16(v[i]);
}

/// `v` as it would be after a store as T and a load.
PERCHERON_INLINE Vec rounded_to(Vec v, const float*) { return v; }
PERCHERON_INLINE Vec rounded_to(Vec v, const Bf16*) { return widen(narrow(v)); }

using LaneSequence = std::make_integer_sequence<int, kLanes>;

template <int... I>
PERCHERON_INLINE void interleave(Vec even, Vec odd, float* out, std::integer_sequence<int, I...>) {
  const Vec low = __builtin_shuffle(even, odd, IntVec{(I / 2 + I % 2 * kLanes)...});
  const Vec high = __builtin_shuffle(even, odd, IntVec{((I + kLanes) / 2 + I % 2 * kLanes)...});
  __builtin_memcpy(out, &low, sizeof low);
  __builtin_memcpy(out + kLanes, &high, sizeof high);
}
/// out[2 i] = even[i], out[2 i + 1] = odd[i].
PERCHERON_INLINE void interleave(Vec even, Vec odd, float* out) {
  interleave(even, odd, out, LaneSequence{});
}

/// Exchanges lane i with lane i ^ Step.
template <int Step, int... I>
PERCHERON_INLINE Vec exchange(Vec v, std::integer_sequence<int, I...>) {
  return __builtin_shuffle(v, IntVec{(I ^ Step)...});
}

/// The sum of all lanes, taken in a fixed tree.
template <int Step = kLanes / 2>
PERCHERON_INLINE float sum_lanes(Vec v) {
  v += exchange<Step>(v, LaneSequence{});
  if constexpr (Step > 1) {
    return sum_lanes<Step / 2>(v);
  } else {
    return v[0];
  }
}
template <int Step = kLanes / 2>
PERCHERON_INLINE float max_lanes(Vec v) {
  v = max(v, exchange<Step>(v, LaneSequence{}));
  if constexpr (Step > 1) {
    return max_lanes<Step / 2>(v);
  } else {
    return v[0];
  }
}

/// x with lanes from `width.count` on replaced by `fill`.
PERCHERON_INLINE Vec fill_after(Vec x, Full, float) { return x; }
PERCHERON_INLINE Vec fill_after(Vec x, Part part, float fill) {
  for (int i = part.count; i < kLanes; ++i) x[i] = fill;
  return x;
}

/// e^x within 2 ulp; 0 below the smallest normal result, infinity above 88.37, NaN stays.
/// Source: Cephes expf (Moshier).
PERCHERON_INLINE Vec exp(Vec x) {
  constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer.
  const Vec clamped = min(splat(88.5f), max(splat(-87.3f), x));
  const Vec shifted = clamped * 1.44269504f + kRound;
  const Vec n = shifted - kRound;
  Vec r = clamped - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.f;
  const UintVec exponent = (float_to_bits(shifted) << 23) + 0x3f800000u;
  const Vec scaled = p * bits_to_float(exponent);
  return x < -87.3f ? splat(0.f) : scaled;
}

/// 2^x within 2 ulp for x <= 127; 0 below -126. Source: Cephes exp2f (Moshier).
PERCHERON_INLINE Vec exp2(Vec x) {
  constexpr float kRound = 12582912.f;
  const Vec clamped = max(splat(-126.f), x);
  const Vec shifted = clamped + kRound;
  const Vec f = clamped - (shifted - kRound);
  Vec p = splat(1.535336188319500e-4f);
  p = p * f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  p = p * f + 1.f;
  const UintVec exponent = (float_to_bits(shifted) << 23) + 0x3f800000u;
  return x < -126.f ? splat(0.f) : p * bits_to_float(exponent);
}

/// Natural logarithm of a positive normal x within 2 ulp. Source: Cephes logf (Moshier).
PERCHERON_INLINE Vec log(Vec x) {
  const UintVec bits = float_to_bits(x);
  // Mantissa in [sqrt(1/2), sqrt(2)): the exponent counts from there.
  const UintVec shifted = bits - 0x3f3504f3u;
  const IntVec exponent = reinterpret_cast<IntVec>(shifted) >> 23;
  const Vec f = bits_to_float((shifted & 0x7fffffu) + 0x3f3504f3u) - 1.f;
  const Vec e = __builtin_convertvector(exponent, Vec);
  Vec p = splat(7.0376836292e-2f);
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const Vec square = f * f;
  Vec y = p * (f * square);
  y = y + e * -2.12194440e-4f - 0.5f * square;
  return f + y + e * 0.693359375f;
}

/// 1 / (1 + e^-x).
PERCHERON_INLINE Vec sigmoid(Vec x) { return 1.f / (1.f + exp(-x)); }

/// Calls f with a pointer of the dtype's type: f32, bf16 or f16.
template <class F>
PERCHERON_INLINE void with_float(DType dtype, F&& f) {
  if (dtype == DType::kF32) {
    f(static_cast<float*>(nullptr));
  } else if (dtype == DType::kBf16) {
    f(static_cast<Bf16*>(nullptr));
  } else {
    f(static_cast<F16*>(nullptr));
  }
}
/// Calls f with a pointer of the dtype's type: f32 or bf16, the types of activations.
template <class F>
PERCHERON_INLINE void with_activation(DType dtype, F&& f) {
  if (dtype == DType::kF32) {
    f(static_cast<float*>(nullptr));
  } else {
    f(static_cast<Bf16*>(nullptr));
  }
}

template <class T>
PERCHERON_INLINE T* row_of(const Rows& x, int64_t row, int64_t head = 0) {
  return static_cast<T*>(x.data) + row * x.row_stride + head * x.head_stride;
}
template <class T>
PERCHERON_INLINE const T* row_of(const ConstRows& x, int64_t row, int64_t head = 0) {
  return static_cast<const T*>(x.data) + row * x.row_stride + head * x.head_stride;
}

}  // namespace
}  // namespace percheron::cpu::PERCHERON_ISA
