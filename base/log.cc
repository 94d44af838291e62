#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace percheron {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

LogLevel level_from_environment() {
  const char* variable = std::getenv("PERCHERON_LOG");
  const std::string_view name = variable != nullptr ? variable : "";
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

std::unique_ptr<spdlog::logger> make_logger() {
  auto logger = std::make_unique<spdlog::logger>("percheron",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      "%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc));
  logger->set_level(spdlog_level(level_from_environment()));
  return logger;
}

// Never destroyed: threads may still log while the program ends.
spdlog::logger& logger() {
  static spdlog::logger& instance = *make_logger().release();
  return instance;
}

}  // namespace

void write_log(LogLevel level, std::string_view message) {
  logger().log(spdlog_level(level), spdlog::string_view_t(message.data(), message.size()));
}

bool log_enabled(LogLevel level) { return logger().should_log(spdlog_level(level)); }

}  // namespace percheron
