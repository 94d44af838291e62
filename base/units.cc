#include "base/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace percheron {
namespace {

template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Three significant digits of a value in [0, 10000).
std::string three_digits(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

}  // namespace

std::string format_bytes(uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  size_t unit = 0;
  double value = static_cast<double>(bytes) / 1024.0;
  for (; value >= 1023.5 && unit + 1 < kUnits.size(); ++unit) value /= 1024.0;
  return fmt::format("{} {}", three_digits(value), kUnits[unit]);
}

std::string format_duration(double seconds) {
  constexpr double kLongestSeconds = 1e12;
  if (!(seconds >= 0) || seconds > kLongestSeconds) return "-";
  if (seconds == 0) return "0 s";
  if (seconds < 0.9995e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 0.9995) return three_digits(seconds * 1e3) + " ms";
  if (seconds < 59.95) return three_digits(seconds) + " s";
  const auto whole = static_cast<uint64_t>(std::llround(seconds));
  const uint64_t minutes = whole / 60, hours = minutes / 60, days = hours / 24;
  if (hours == 0) return fmt::format("{} min {:02} s", minutes, whole % 60);
  if (days == 0) return fmt::format("{} h {:02} min", hours, minutes % 60);
  return fmt::format("{} d {:02} h", days, hours % 24);
}

std::string format_count(uint64_t count) {
  std::string text = fmt::format("{}", count);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 9> kUnits{{{"KiB", 1024.0},
                                                                       {"MiB", 1048576.0},
                                                                       {"GiB", 1073741824.0},
                                                                       {"TiB", 1099511627776.0},
                                                                       {"kB", 1e3},
                                                                       {"MB", 1e6},
                                                                       {"GB", 1e9},
                                                                       {"TB", 1e12},
                                                                       {"B", 1.0}}};
  for (const auto& [unit, scale] : kUnits) {
    if (!text.ends_with(unit)) continue;
    std::string_view number = text.substr(0, text.size() - unit.size());
    while (!number.empty() && number.back() == ' ') number.remove_suffix(1);
    const std::optional<double> value = parse_number<double>(number);
    if (!value || !(*value >= 0) || *value * scale > 9e18) return std::nullopt;
    return static_cast<uint64_t>(*value * scale);
  }
  return parse_number<uint64_t>(text);
}

}  // namespace percheron
