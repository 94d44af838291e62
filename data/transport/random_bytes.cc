#include "data/transport/random_bytes.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.h"

namespace percheron {
namespace {

class SystemRandomBytes final : public RandomBytes {
 public:
  void fill(std::span<std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t count = ::getrandom(bytes.data(), bytes.size(), 0);
      PERCHERON_CHECK(count > 0 || errno == EINTR, "the system has no random bytes");
      if (count > 0) bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }
};

constexpr std::string_view kDigits = "0123456789abcdef";
constexpr size_t kUuidCharacters = 36;

bool is_dash_place(size_t i) { return i == 8 || i == 13 || i == 18 || i == 23; }

}  // namespace

RandomBytes& system_random_bytes() {
  static SystemRandomBytes random;
  return random;
}

std::string make_uuid(RandomBytes& random) {
  std::array<std::byte, 16> bytes;
  random.fill(bytes);
  bytes[6] = (bytes[6] & std::byte{0x0f}) | std::byte{0x40};  // version 4
  bytes[8] = (bytes[8] & std::byte{0x3f}) | std::byte{0x80};  // RFC's variant
  std::string text;
  for (const std::byte byte : bytes) {
    if (is_dash_place(text.size())) text += '-';
    text += kDigits[static_cast<size_t>(byte >> 4)];
    text += kDigits[static_cast<size_t>(byte & std::byte{0x0f})];
  }
  return text;
}

bool is_uuid(std::string_view text) {
  if (text.size() != kUuidCharacters) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool fits = is_dash_place(i) ? text[i] == '-' : kDigits.find(text[i]) != kDigits.npos;
    if (!fits) return false;
  }
  return true;
}

}  // namespace percheron
