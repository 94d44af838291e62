#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace percheron {

/// The length before a frame: 4 bytes, little-endian.
constexpr size_t kLengthBytes = 4;

inline std::array<char, kLengthBytes> encode_length(size_t length) {
  const auto value = static_cast<uint32_t>(length);
  return {static_cast<char>(value), static_cast<char>(value >> 8), static_cast<char>(value >> 16),
          static_cast<char>(value >> 24)};
}

inline size_t decode_length(std::span<const char, kLengthBytes> bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    value |= uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return value;
}

/// kDataLoss for a length that `peer` announces above `limit`.
inline Status check_incoming_length(size_t length, size_t limit, const std::string& peer) {
  if (length <= limit) return ok_status();
  return data_loss(peer + " announces a frame of " + std::to_string(length) +
                   " bytes; the limit is " + std::to_string(limit));
}

/// kInvalidArgument for a frame of ours that is above `limit`.
inline Status check_outgoing_length(size_t length, size_t limit, const std::string& peer) {
  if (length <= limit) return ok_status();
  return invalid_argument("a frame of " + std::to_string(length) + " bytes to " + peer +
                          " is above the limit of " + std::to_string(limit));
}

}  // namespace percheron
