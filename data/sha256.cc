#include "data/sha256.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <array>

#include "base/check.h"

namespace percheron {
namespace {

constexpr size_t kDigits = 64;

}  // namespace

std::string sha256_hex(std::span<const std::byte> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  const int done =
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr);
  PERCHERON_CHECK(done == 1, "OpenSSL has no SHA-256");
  return fmt::format("{:02x}", fmt::join(digest.begin(), digest.begin() + size, ""));
}

bool is_sha256_hex(std::string_view text) {
  return text.size() == kDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace percheron
