#include "base/units.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/counted.h"

namespace percheron {
namespace {

TEST(Units, BytesUseTheLargestBinaryUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes((1u << 20) - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes(uint64_t{213} << 30), "213 GiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<uint64_t>::max()), "16.0 EiB");
}

TEST(Units, BytesAreReadWithAndWithoutAUnit) {
  EXPECT_EQ(parse_bytes("17"), 17u);
  EXPECT_EQ(parse_bytes("512MiB"), uint64_t{512} << 20);
  EXPECT_EQ(parse_bytes("2 GB"), 2'000'000'000u);
  EXPECT_EQ(parse_bytes("1.5kB"), 1500u);
  for (const char* wrong : {"", "-1", "1.5", "GiB", "12 parsecs", "nanGiB", "1e30TiB"}) {
    EXPECT_EQ(parse_bytes(wrong), std::nullopt) << wrong;
  }
}

TEST(Units, DurationsUseTwoNeighbouringUnits) {
  EXPECT_EQ(format_duration(0), "0 s");
  EXPECT_EQ(format_duration(0.00035), "350 us");
  EXPECT_EQ(format_duration(0.0125), "12.5 ms");
  EXPECT_EQ(format_duration(0.99999), "1.00 s");
  EXPECT_EQ(format_duration(3.2), "3.20 s");
  EXPECT_EQ(format_duration(59.99), "1 min 00 s");
  EXPECT_EQ(format_duration(245), "4 min 05 s");
  EXPECT_EQ(format_duration(2 * 3600 + 7 * 60 + 9), "2 h 07 min");
  EXPECT_EQ(format_duration(3 * 86400 + 4 * 3600), "3 d 04 h");
  EXPECT_EQ(format_duration(-1), "-");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "-");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "-");
}

TEST(Units, CountsHaveACommaAtEveryThousand) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(1234567), "1,234,567");
}

TEST(Units, NumbersOfThingsKnowOneFromMany) {
  EXPECT_EQ(counted(0, "sample"), "0 samples");
  EXPECT_EQ(counted(1, "sample"), "1 sample");
  EXPECT_EQ(counted(1234, "row"), "1,234 rows");
}

}  // namespace
}  // namespace percheron
