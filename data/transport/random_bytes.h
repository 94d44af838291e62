#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace percheron {

/// Where bytes that nobody can guess come from, so that tests can replace it. Thread-safe.
class RandomBytes {
 public:
  virtual ~RandomBytes() = default;
  virtual void fill(std::span<std::byte> bytes) = 0;
};

/// The operating system's.
RandomBytes& system_random_bytes();

/// A new random UUID (version 4), as "3f2c9a4e-....", 36 characters. Source: RFC 9562.
std::string make_uuid(RandomBytes& random);

/// Whether `text` is spelled as make_uuid() spells.
bool is_uuid(std::string_view text);

}  // namespace percheron
