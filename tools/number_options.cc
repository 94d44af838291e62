#include "tools/number_options.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "base/units.h"

namespace percheron {
namespace {

CLI::Validator check(const std::string& range, double low, double high) {
  const auto refused = [range, low, high](const std::string& text) -> std::string {
    double value = 0;
    if (!CLI::detail::lexical_cast(text, value) || std::isnan(value)) {
      return fmt::format("it is '{}', which is no number", text);
    }
    if (low <= value && value <= high) return {};
    return fmt::format("it is {}, but must be {}", text, range);
  };
  return CLI::Validator([refused](std::string& text) { return refused(text); }, range);
}

}  // namespace

CLI::Validator at_least(int64_t least) {
  return check(fmt::format("at least {}", least), static_cast<double>(least),
               std::numeric_limits<double>::max());
}

CLI::Validator in_range(int64_t low, int64_t high) {
  return check(fmt::format("from {} to {}", low, high), static_cast<double>(low),
               static_cast<double>(high));
}

Result<uint64_t> byte_count(const char* option, const std::string& text) {
  const std::optional<uint64_t> bytes = parse_bytes(text);
  if (bytes && *bytes > 0) return *bytes;
  return invalid_argument(
      fmt::format("{} is '{}': it must be a byte count above 0, such as 512MiB", option, text));
}

}  // namespace percheron
