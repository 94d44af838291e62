#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/hash.h"

namespace percheron {

/// The CRC-32C of two pieces, one behind the other: from those of each, `first` and `second`, and
/// the second's length in bytes. Takes no longer for long pieces.
uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes);

/// How crc32c() does it; it takes the last one that the processor has.
enum class Crc32cMethod {
  kTable,
  kInstruction,  // SSE4.2's
  kFold128,      // carry-less products, four at a time
  kFold512,      // the same on AVX-512 with VPCLMULQDQ
};
bool has_crc32c_method(Crc32cMethod method);
/// crc32c() by one method that the processor has, for tests and measurements.
uint32_t crc32c_by(Crc32cMethod method, std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace percheron
