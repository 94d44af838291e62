#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace percheron {

/// The SHA-256 of `bytes` as 64 lower-case hexadecimal digits, to compare with hashes that other
/// programs made; for a hash of our own ContentHash is faster. Source: FIPS 180-4.
std::string sha256_hex(std::span<const std::byte> bytes);

/// Whether `text` could be what sha256_hex gives.
bool is_sha256_hex(std::string_view text);

}  // namespace percheron
