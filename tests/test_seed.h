#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace percheron {

/// The seed of a random test: `usual`, or PERCHERON_TEST_SEED where that is set, to replay a
/// failure.
inline uint64_t test_seed(uint64_t usual) {
  const char* seed = std::getenv("PERCHERON_TEST_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : usual;
}

/// test_seed(usual), which every failure within the scope prints.
class TestSeed {
 public:
  explicit TestSeed(uint64_t usual)
      : value_(test_seed(usual)),
        trace_(__FILE__, __LINE__, "PERCHERON_TEST_SEED=" + std::to_string(value_)) {}
  uint64_t value() const { return value_; }

 private:
  uint64_t value_;
  testing::ScopedTrace trace_;
};

}  // namespace percheron
