#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace percheron {

/// What travels on a bulk connection after the hello. All numbers are little-endian.
///
///   request:  slot u64, generation u64, offset u64, length u32, first 4 bytes of kBulkMark
///   answer:   status u32, length u32, then with kChunkFollows `length` bytes and their CRC-32C,
///   u32
///
/// Requests may follow each other without waiting; answers come in their order.
constexpr uint32_t kBulkMark = 0x4b4c5542;  // "BULK": a stream out of step is noticed
constexpr size_t kBulkRequestBytes = 32;
constexpr size_t kBulkAnswerBytes = 8;
constexpr size_t kBulkCrcBytes = 4;
constexpr uint32_t kBulkChunkBytesMax = uint32_t{64} << 20;

enum class BulkAnswer : uint32_t {
  kChunkFollows = 1,
  kGone = 2,        // the slot has another generation now, or none
  kOutOfRange = 3,  // not within the region
};

struct ChunkRequest {
  uint64_t slot = 0;
  uint64_t generation = 0;
  uint64_t offset = 0;
  uint32_t length = 0;
};

struct ChunkAnswer {
  BulkAnswer status = BulkAnswer::kGone;
  uint32_t length = 0;
};

/// Writes a number; returns what is behind it.
template <class Number>
std::span<std::byte> put_number(std::span<std::byte> at, Number number) {
  for (size_t i = 0; i < sizeof number; ++i) {
    at[i] = static_cast<std::byte>(number >> (8 * i));
  }
  return at.subspan(sizeof number);
}

/// Reads a number; returns what is behind it.
template <class Number>
std::span<const std::byte> take_number(std::span<const std::byte> at, Number& number) {
  number = 0;
  for (size_t i = 0; i < sizeof number; ++i) {
    number |= static_cast<Number>(static_cast<Number>(at[i]) << (8 * i));
  }
  return at.subspan(sizeof number);
}

inline std::array<std::byte, kBulkRequestBytes> encode(const ChunkRequest& request) {
  std::array<std::byte, kBulkRequestBytes> bytes;
  std::span<std::byte> at = put_number(std::span<std::byte>(bytes), request.slot);
  at = put_number(at, request.generation);
  at = put_number(at, request.offset);
  at = put_number(at, request.length);
  put_number(at, kBulkMark);
  return bytes;
}

/// False when the mark is missing.
inline bool decode(std::span<const std::byte, kBulkRequestBytes> bytes, ChunkRequest& request) {
  std::span<const std::byte> at = take_number(std::span<const std::byte>(bytes), request.slot);
  at = take_number(at, request.generation);
  at = take_number(at, request.offset);
  at = take_number(at, request.length);
  uint32_t mark = 0;
  take_number(at, mark);
  return mark == kBulkMark;
}

inline std::array<std::byte, kBulkAnswerBytes> encode(const ChunkAnswer& answer) {
  std::array<std::byte, kBulkAnswerBytes> bytes;
  const std::span<std::byte> at =
      put_number(std::span<std::byte>(bytes), static_cast<uint32_t>(answer.status));
  put_number(at, answer.length);
  return bytes;
}

/// The status may be any number that came.
inline ChunkAnswer decode(std::span<const std::byte, kBulkAnswerBytes> bytes) {
  uint32_t status = 0;
  ChunkAnswer answer;
  take_number(take_number(std::span<const std::byte>(bytes), status), answer.length);
  answer.status = static_cast<BulkAnswer>(status);
  return answer;
}

}  // namespace percheron
