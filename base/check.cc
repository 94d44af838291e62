#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace percheron {

void check_failed(const char* condition, const char* file, int line, std::string_view message) {
  std::fprintf(stderr, "%s:%d: bug: \"%s\" does not hold: %.*s\n", file, line, condition,
               static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace percheron
