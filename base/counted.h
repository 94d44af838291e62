#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/units.h"

namespace percheron {

/// "1 sample", "1,234 samples": `what` is a noun whose plural ends in s.
inline std::string counted(int64_t count, std::string_view what) {
  return format_count(static_cast<uint64_t>(count)) + " " + std::string(what) +
         (count == 1 ? "" : "s");
}

}  // namespace percheron
