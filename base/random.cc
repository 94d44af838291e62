#include "base/random.h"

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace percheron {
namespace {

constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15;

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// FNV-1a, 64 bits.
uint64_t hash_text(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

Random Random::keyed(uint64_t seed, std::string_view purpose, uint64_t a, uint64_t b) {
  uint64_t state = mix(seed + kGoldenGamma);
  for (const uint64_t word : {hash_text(purpose), a, b}) state = mix((state ^ word) + kGoldenGamma);
  return Random(state);
}

uint64_t Random::next() {
  state_ += kGoldenGamma;
  return mix(state_);
}

// Source: Lemire 2019, "Fast random integer generation in an interval".
uint64_t Random::below(uint64_t bound) {
  PERCHERON_CHECK(bound > 0, "no number lies below 0");
  __extension__ using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(next()) * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t rejected = -bound % bound;  // 2^64 mod bound
    while (static_cast<uint64_t>(product) < rejected) product = static_cast<Wide>(next()) * bound;
  }
  return static_cast<uint64_t>(product >> 64);
}

double Random::uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

double Random::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));  // 1 - u lies in (0, 1].
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

}  // namespace percheron
