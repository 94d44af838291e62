#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace percheron {

/// The project's own generator (SplitMix64): the same integers and uniform numbers on every machine
/// and library version. normal() goes through the library's logarithm and cosine, whose last bit
/// may differ. Not for secrets. Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom
/// number generators".
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  /// A generator that is a pure function of what is drawn for whom: decisions never share state.
  /// `purpose` is a literal such as "anchors"; `a`, `b` are usually epoch and sample id.
  static Random keyed(uint64_t seed, std::string_view purpose, uint64_t a = 0, uint64_t b = 0);

  uint64_t next();
  /// Uniform in [0, bound), without modulo bias. bound > 0.
  uint64_t below(uint64_t bound);
  /// Uniform in [0, 1), 53 bits.
  double uniform();
  /// Standard normal (Box-Muller, one value per call).
  double normal();

 private:
  uint64_t state_;
};

/// Fisher-Yates with the project's generator.
template <class T>
void shuffle(std::span<T> values, Random& random) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.below(i)]);
}

}  // namespace percheron
