#pragma once

#include <string_view>

namespace percheron {

/// Prints the failed condition, its place and the message, then aborts.
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               std::string_view message);

}  // namespace percheron

/// States what only a bug could break; stays on in release builds. Never reachable by user input or
/// the network: those get a Status. `message` is evaluated only on failure.
#define PERCHERON_CHECK(condition, message)                                 \
  do {                                                                      \
    if (!(condition)) [[unlikely]] {                                        \
      ::percheron::check_failed(#condition, __FILE__, __LINE__, (message)); \
    }                                                                       \
  } while (false)
