#include "tests/fuzz/mutate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace percheron {
namespace {

uint64_t number_from(const char* variable, uint64_t fallback) {
  const char* text = std::getenv(variable);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

}  // namespace

std::string mutate(std::string bytes, Random& random) {
  static constexpr std::string_view kLikely = "0123456789{}[]\",:-.\\\0\xff";
  const auto any_byte = [&] {
    return random.below(2) == 0 ? kLikely[random.below(kLikely.size())]
                                : static_cast<char>(random.below(256));
  };
  for (uint64_t n = 1 + random.below(4); n > 0 && !bytes.empty(); --n) {
    // Half of the time near the front, where headers are.
    const size_t range = random.below(2) == 0 ? std::min<size_t>(bytes.size(), 64) : bytes.size();
    const size_t at = random.below(range);
    const size_t length = std::min<size_t>(1 + random.below(16), bytes.size() - at);
    switch (random.below(6)) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8))); break;
      case 1: bytes[at] = any_byte(); break;
      case 2: bytes.insert(at, 1, any_byte()); break;
      case 3: bytes.erase(at, length); break;
      case 4: bytes.insert(at, bytes.substr(at, length)); break;
      default: bytes.resize(at); break;
    }
  }
  return bytes;
}

void fuzz_bytes(const std::string& whole, const std::function<void(const std::string&)>& read) {
  const uint64_t seed = number_from("PERCHERON_FUZZ_SEED", 1);
  const uint64_t rounds = number_from("PERCHERON_FUZZ_ROUNDS", 3000);
  for (uint64_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE("PERCHERON_FUZZ_SEED=" + std::to_string(seed) + " round " + std::to_string(round));
    Random random = Random::keyed(seed, "fuzz", round);
    read(mutate(whole, random));
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace percheron
