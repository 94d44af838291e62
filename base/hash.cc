#include "base/hash.h"

#include "base/check.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace percheron {
namespace {

XXH3_state_t* as_state(void* state) { return static_cast<XXH3_state_t*>(state); }

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

}  // namespace percheron
