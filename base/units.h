#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace percheron {

/// In the largest binary unit that fits, three digits: "512 B", "1.50 KiB", "21.3 GiB".
std::string format_bytes(uint64_t bytes);

/// "512MiB", "2 GB", "1.5TiB" as bytes (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB); plain whole numbers
/// are bytes. None for anything else.
std::optional<uint64_t> parse_bytes(std::string_view text);

/// Two neighbouring units: "350 us", "12.5 ms", "3.20 s", "4 min 05 s", "2 h 07 min", "3 d 04 h".
/// Negative and non-finite durations are "-".
std::string format_duration(double seconds);

/// With a comma at every thousand: "1,234,567".
std::string format_count(uint64_t count);

}  // namespace percheron
