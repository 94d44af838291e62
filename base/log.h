#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace percheron {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Writes one line to stderr with UTC time and level, unless PERCHERON_LOG (debug, info, warning or
/// error; default info) asks for more severe lines only. Thread-safe.
void write_log(LogLevel level, std::string_view message);
bool log_enabled(LogLevel level);

/// Each formats as fmt::format does: log_info("read {} files", count). Nothing is formatted when
/// the level is off.
template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kDebug)) {
    write_log(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
  }
}

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kInfo)) {
    write_log(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
}

template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kWarning)) {
    write_log(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
  }
}

template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kError)) {
    write_log(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace percheron
