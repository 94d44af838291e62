#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"
#include "tests/test_seed.h"

namespace percheron {
namespace {

constexpr Crc32cMethod kMethods[] = {Crc32cMethod::kTable, Crc32cMethod::kInstruction,
                                     Crc32cMethod::kFold128, Crc32cMethod::kFold512};

// Bit by bit, as the definition says.
uint32_t reference(std::span<const std::byte> bytes, uint32_t crc) {
  crc = ~crc;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78 : 0);
  }
  return ~crc;
}

std::vector<std::byte> random_bytes(size_t count, Random& random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  return bytes;
}

TEST(Crc32c, EveryMethodAgreesWithTheDefinition) {
  const TestSeed seed(1);
  Random random(seed.value());
  const std::vector<std::byte> bytes = random_bytes(3000, random);
  for (const Crc32cMethod method : kMethods) {
    if (!has_crc32c_method(method)) continue;
    for (size_t begin = 0; begin < 5; ++begin) {
      for (size_t size = 0; size < 1100; size += size < 300 ? 1 : 7) {
        const auto part = std::span(bytes).subspan(begin, size);
        ASSERT_EQ(crc32c_by(method, part, 77), reference(part, 77))
            << "method " << static_cast<int>(method) << ", " << size << " bytes from " << begin;
      }
    }
    EXPECT_EQ(crc32c_by(method, bytes), reference(bytes, 0));
  }
}

TEST(Crc32c, OfTwoPartsIsThatOfTheWhole) {
  const TestSeed seed(2);
  Random random(seed.value());
  for (int round = 0; round < 50; ++round) {
    const std::vector<std::byte> bytes = random_bytes(random.below(5000), random);
    const size_t cut = random.below(bytes.size() + 1);
    const auto first = std::span(bytes).first(cut), second = std::span(bytes).subspan(cut);
    EXPECT_EQ(crc32c_combine(crc32c(first), crc32c(second), second.size()), crc32c(bytes));
  }
}

// 8 GiB of zero bytes: their CRC is built up by doubling.
TEST(Crc32c, IsCombinedBeyondFourGibibytes) {
  uint64_t bytes = 1;
  const std::byte zero{0};
  uint32_t doubled = crc32c({&zero, 1});
  while (bytes < uint64_t{8} << 30) {
    doubled = crc32c_combine(doubled, doubled, bytes);
    bytes *= 2;
  }
  uint32_t in_pieces = 0;
  const std::vector<std::byte> piece(1 << 20);
  const uint32_t piece_crc = crc32c(piece);
  for (uint64_t done = 0; done < bytes; done += piece.size()) {
    in_pieces = crc32c_combine(in_pieces, piece_crc, piece.size());
  }
  EXPECT_EQ(doubled, in_pieces);
}

}  // namespace
}  // namespace percheron
