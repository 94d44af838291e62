#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace percheron {

/// Durations counted by size. Copied whole, so that readers need no lock for longer than a copy.
struct DurationHistogram {
  /// Upper bounds in seconds; what is longer counts in the last place.
  static constexpr std::array<double, 16> kBounds = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};

  std::array<int64_t, kBounds.size() + 1> counts{};
  double sum = 0;

  void add(double seconds) {
    size_t place = 0;
    while (place < kBounds.size() && seconds > kBounds[place]) ++place;
    ++counts[place];
    sum += seconds;
  }
};

}  // namespace percheron
