#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace percheron {

/// Collects bytes into a 128-bit content hash (XXH3), printed as 32 hexadecimal digits. Tells two
/// inputs apart by accident, not against an adversary.
class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  ContentHash(const ContentHash&) = delete;
  ContentHash& operator=(const ContentHash&) = delete;

  /// Continues the bytes: how they are cut into calls does not matter.
  void add(std::span<const std::byte> bytes);
  /// Adds the text with its length, so that ("a", "bc") and ("ab", "c") differ.
  void add_text(std::string_view text);
  /// Of everything added so far; more may be added after.
  std::string hex() const;

 private:
  void* state_;
};

/// ContentHash of these bytes alone.
std::string content_hash(std::span<const std::byte> bytes);

/// CRC-32C (Castagnoli) of `bytes`, continuing from `crc` (0 to start). Source: RFC 3720 appendix
/// B.4.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace percheron
