#include "data/transport/host_name.h"

namespace percheron {
namespace {

constexpr size_t kPartCharactersMax = 63;

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_part(std::string_view part) {
  if (part.empty() || part.size() > kPartCharactersMax) return false;
  for (const char c : part) {
    if (!is_letter_or_digit(c) && c != '-') return false;
  }
  return part.front() != '-' && part.back() != '-';
}

}  // namespace

bool is_host_name(std::string_view text) {
  if (text.size() > kHostNameCharactersMax) return false;
  for (;;) {
    const size_t dot = text.find('.');
    if (!is_part(text.substr(0, dot))) return false;
    if (dot == std::string_view::npos) return true;
    text.remove_prefix(dot + 1);
  }
}

}  // namespace percheron
