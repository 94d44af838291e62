#include "base/hash.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace percheron {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Crc32c, AgreesWithTheVectorsOfRfc3720) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8a9136aau);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xff'))), 0x62a8ab43u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Crc32c, ContinuesFromAnEarlierPart) {
  const std::string text = "features travel between machines with their checksum";
  for (size_t split = 0; split <= text.size(); ++split) {
    const uint32_t first = crc32c(bytes_of(text.substr(0, split)));
    EXPECT_EQ(crc32c(bytes_of(text.substr(split)), first), crc32c(bytes_of(text)));
  }
}

TEST(ContentHash, AgreesWithXxhash) {
  // `printf '' | xxh128sum` and `printf percheron | xxh128sum`.
  EXPECT_EQ(content_hash({}), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(content_hash(bytes_of("percheron")), "d8b7e9fb2e07365143239bb1bad91852");
}

TEST(ContentHash, DoesNotDependOnHowTheBytesAreCut) {
  const std::string text(10000, 'x');
  ContentHash hash;
  for (size_t at = 0; at < text.size(); at += 77) hash.add(bytes_of(text.substr(at, 77)));
  EXPECT_EQ(hash.hex(), content_hash(bytes_of(text)));
}

TEST(ContentHash, TellsTextsApartByWhereTheyEnd) {
  ContentHash first, second;
  first.add_text("a");
  first.add_text("bc");
  second.add_text("ab");
  second.add_text("c");
  EXPECT_NE(first.hex(), second.hex());
}

}  // namespace
}  // namespace percheron
