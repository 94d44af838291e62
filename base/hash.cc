#include "base/hash.h"

#include <array>
#include <cstring>

#include "base/check.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace percheron {
namespace {

XXH3_state_t* as_state(void* state) { return static_cast<XXH3_state_t*>(state); }

constexpr std::array<uint32_t, 256> make_crc32c_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78 : 0);
    table[i] = crc;
  }
  return table;
}

uint32_t crc32c_table(std::span<const std::byte> bytes, uint32_t crc) {
  static constexpr std::array<uint32_t, 256> kTable = make_crc32c_table();
  for (const std::byte byte : bytes) {
    crc = kTable[(crc ^ static_cast<uint32_t>(byte)) & 0xff] ^ (crc >> 8);
  }
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(std::span<const std::byte> bytes,
                                                        uint32_t crc) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  uint64_t wide = crc;
  for (; left >= sizeof(uint64_t); left -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    wide = _mm_crc32_u64(wide, word);
  }
  return crc32c_table({at, left}, static_cast<uint32_t>(wide));
}
#endif

}  // namespace

ContentHash::ContentHash() : state_(XXH3_createState()) {
  PERCHERON_CHECK(state_ != nullptr, "no memory for a hash state");
  XXH3_128bits_reset(as_state(state_));
}

ContentHash::~ContentHash() { XXH3_freeState(as_state(state_)); }

void ContentHash::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(as_state(state_), bytes.data(), bytes.size());
}

void ContentHash::add_text(std::string_view text) {
  const uint64_t size = text.size();
  add(std::as_bytes(std::span(&size, 1)));
  add(std::as_bytes(std::span(text)));
}

std::string ContentHash::hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(as_state(state_)));
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string content_hash(std::span<const std::byte> bytes) {
  ContentHash hash;
  hash.add(bytes);
  return hash.hex();
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
#if defined(__x86_64__)
  static const bool kHasSse42 = __builtin_cpu_supports("sse4.2");
  if (kHasSse42) return ~crc32c_sse42(bytes, ~crc);
#endif
  return ~crc32c_table(bytes, ~crc);
}

}  // namespace percheron
