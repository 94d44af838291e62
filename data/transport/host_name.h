#pragma once

#include <string_view>

namespace percheron {

constexpr size_t kHostNameCharactersMax = 253;
constexpr std::string_view kHostNameRule =
    "letters, digits, '-' and '.', 1 to 253 of them, each part between dots 1 to 63 and beginning "
    "and ending with a letter or digit";

/// Whether `text` obeys kHostNameRule. Source: RFC 1123.
bool is_host_name(std::string_view text);

}  // namespace percheron
