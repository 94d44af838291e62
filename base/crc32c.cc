#include "base/crc32c.h"

#include <array>
#include <cstring>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace percheron {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected: bit 31 is x^0

// `value` * x modulo the polynomial.
constexpr uint32_t times_x(uint32_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
}

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = times_x(crc);
    table[i] = crc;
  }
  return table;
}

// These work on the state, which is the complement of the CRC.
uint32_t add_by_table(std::span<const std::byte> bytes, uint32_t state) {
  static constexpr std::array<uint32_t, 256> kTable = make_table();
  for (const std::byte byte : bytes) {
    state = kTable[(state ^ static_cast<uint32_t>(byte)) & 0xff] ^ (state >> 8);
  }
  return state;
}

// a * b modulo the polynomial.
uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 0x80000000; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = times_x(b);
  }
  return product;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) uint32_t add_by_instruction(std::span<const std::byte> bytes,
                                                              uint32_t state) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  uint64_t wide = state;
  for (; left >= sizeof(uint64_t); left -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    wide = _mm_crc32_u64(wide, word);
  }
  return add_by_table({at, left}, static_cast<uint32_t>(wide));
}

// Folding replaces 128 bits by an equal residue `distance` bits further on: its two halves times
// x^(distance+32) and x^(distance-32). What is left at the end has the CRC of the whole.
// Source: Gopal et al. 2009, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ".
constexpr int64_t fold_factor(int power) {
  uint32_t value = 0x80000000;
  for (int i = 0; i < power; ++i) value = times_x(value);
  return static_cast<int64_t>(uint64_t{value} << 1);
}

constexpr size_t kFold128Bytes = 4 * 16;

__attribute__((target("sse4.2,pclmul"))) uint32_t add_by_fold128(std::span<const std::byte> bytes,
                                                                 uint32_t state) {
  if (bytes.size() < 2 * kFold128Bytes) return add_by_instruction(bytes, state);
  constexpr int64_t kLow = fold_factor(512 + 32), kHigh = fold_factor(512 - 32);
  const __m128i factors = _mm_set_epi64x(kHigh, kLow);
  const auto load = [](const std::byte* at) __attribute__((target("sse4.2,pclmul"))) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  };
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  __m128i sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = load(at + 16 * i);
  sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128(static_cast<int>(state)));
  for (at += kFold128Bytes, left -= kFold128Bytes; left >= kFold128Bytes;
       at += kFold128Bytes, left -= kFold128Bytes) {
    for (int i = 0; i < 4; ++i) {
      const __m128i low = _mm_clmulepi64_si128(sums[i], factors, 0x00);
      const __m128i high = _mm_clmulepi64_si128(sums[i], factors, 0x11);
      sums[i] = _mm_xor_si128(_mm_xor_si128(low, high), load(at + 16 * i));
    }
  }
  std::array<std::byte, kFold128Bytes> rest;
  std::memcpy(rest.data(), sums, sizeof sums);
  return add_by_instruction({at, left}, add_by_instruction(rest, 0));
}

constexpr size_t kFold512Bytes = 4 * 64;

__attribute__((target("sse4.2,pclmul,avx512f,vpclmulqdq"))) uint32_t add_by_fold512(
    std::span<const std::byte> bytes, uint32_t state) {
  if (bytes.size() < 2 * kFold512Bytes) return add_by_fold128(bytes, state);
  constexpr int64_t kLow = fold_factor(2048 + 32), kHigh = fold_factor(2048 - 32);
  const __m512i factors = _mm512_set_epi64(kHigh, kLow, kHigh, kLow, kHigh, kLow, kHigh, kLow);
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  __m512i sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = _mm512_loadu_si512(at + 64 * i);
  const __m128i start = _mm_cvtsi32_si128(static_cast<int>(state));
  sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(start));
  for (at += kFold512Bytes, left -= kFold512Bytes; left >= kFold512Bytes;
       at += kFold512Bytes, left -= kFold512Bytes) {
    for (int i = 0; i < 4; ++i) {
      const __m512i low = _mm512_clmulepi64_epi128(sums[i], factors, 0x00);
      const __m512i high = _mm512_clmulepi64_epi128(sums[i], factors, 0x11);
      // The exclusive or of all three.
      sums[i] = _mm512_ternarylogic_epi64(low, high, _mm512_loadu_si512(at + 64 * i), 0x96);
    }
  }
  std::array<std::byte, kFold512Bytes> rest;
  std::memcpy(rest.data(), sums, sizeof sums);
  return add_by_fold128({at, left}, add_by_fold128(rest, 0));
}

#endif

uint32_t add(Crc32cMethod method, std::span<const std::byte> bytes, uint32_t state) {
  switch (method) {
#if defined(__x86_64__)
    case Crc32cMethod::kInstruction: return add_by_instruction(bytes, state);
    case Crc32cMethod::kFold128: return add_by_fold128(bytes, state);
    case Crc32cMethod::kFold512: return add_by_fold512(bytes, state);
#endif
    default: return add_by_table(bytes, state);
  }
}

Crc32cMethod best_method() {
  for (const Crc32cMethod method :
       {Crc32cMethod::kFold512, Crc32cMethod::kFold128, Crc32cMethod::kInstruction}) {
    if (has_crc32c_method(method)) return method;
  }
  return Crc32cMethod::kTable;
}

}  // namespace

bool has_crc32c_method(Crc32cMethod method) {
#if defined(__x86_64__)
  const bool has_instruction = __builtin_cpu_supports("sse4.2");
  const bool has_product = has_instruction && __builtin_cpu_supports("pclmul");
  switch (method) {
    case Crc32cMethod::kTable: return true;
    case Crc32cMethod::kInstruction: return has_instruction;
    case Crc32cMethod::kFold128: return has_product;
    case Crc32cMethod::kFold512:
      return has_product && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("vpclmulqdq");
  }
#endif
  return method == Crc32cMethod::kTable;
}

uint32_t crc32c_by(Crc32cMethod method, std::span<const std::byte> bytes, uint32_t crc) {
  PERCHERON_CHECK(has_crc32c_method(method), "the processor lacks this method");
  return ~add(method, bytes, ~crc);
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  static const Crc32cMethod kMethod = best_method();
  return ~add(kMethod, bytes, ~crc);
}

uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes) {
  // first * x^(8 * second_bytes), by the bits of the power.
  uint32_t power = 0x00800000;  // x^8
  for (uint64_t left = second_bytes; left != 0; left >>= 1) {
    if ((left & 1) != 0) first = multiply(first, power);
    power = multiply(power, power);
  }
  return first ^ second;
}

}  // namespace percheron
