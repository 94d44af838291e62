#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace percheron {

/// Prints to a stream of the C library. Never throws, as fmt::print does on a short write (a full
/// disk, a closed pipe): the first failure is kept, and nothing is printed after it.
class Printer {
 public:
  explicit Printer(std::FILE* out) : out_(out) {}

  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    write(fmt::format(format, std::forward<Args>(args)...));
  }
  /// Writes `text` as it is and flushes.
  void write(std::string_view text);

  /// kUnavailable once something could not be written.
  const Status& status() const { return status_; }

 private:
  std::FILE* out_;
  Status status_;
};

}  // namespace percheron
