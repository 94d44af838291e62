#include "data/length_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/data/shards.h"
#include "tests/data/stand_in.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class LengthFile : public testing::Test {
 protected:
  Result<std::vector<int32_t>> read(const std::string& name, const std::string& text) {
    EXPECT_TRUE(write_text_atomically(files_, name, text).ok());
    return read_lengths(files_, name);
  }
  std::string error(const std::string& name, const std::string& text) {
    const auto lengths = read(name, text);
    EXPECT_FALSE(lengths.ok()) << text;
    return lengths.status().message();
  }

  FaultFileSystem files_;
};

TEST_F(LengthFile, IsOneIntegerALine) {
  EXPECT_THAT(*read("a.txt", "12\n7\n16777216\n"), ElementsAre(12, 7, 16777216));
  EXPECT_THAT(*read("a.txt", "12\n7"), ElementsAre(12, 7));
  EXPECT_THAT(*read("a.txt", "12\r\n7\r\n"), ElementsAre(12, 7));
}

TEST_F(LengthFile, NamesTheLineThatIsNoLength) {
  EXPECT_THAT(error("a.txt", "12\nseven\n"), AllOf(HasSubstr("a.txt:2"), HasSubstr("'seven'")));
  EXPECT_THAT(error("a.txt", "12\n\n7\n"), HasSubstr("a.txt:2 is ''"));
  EXPECT_THAT(error("a.txt", "0\n"), HasSubstr("a.txt:1 is '0'"));
  EXPECT_THAT(error("a.txt", "-3\n"), HasSubstr("'-3'"));
  EXPECT_THAT(error("a.txt", "1.5\n"), HasSubstr("'1.5'"));
  EXPECT_THAT(error("a.txt", "16777217\n"), HasSubstr("1 to 16,777,216"));
  EXPECT_THAT(error("a.txt", "99999999999999999999\n"), HasSubstr("a.txt:1"));
  EXPECT_THAT(error("a.txt", ""), HasSubstr("a.txt is empty"));
  EXPECT_EQ(read_lengths(files_, "missing").status().code(), StatusCode::kNotFound);
}

TEST_F(LengthFile, IsAQuantileFunction) {
  EXPECT_THAT(*read("q.json", R"({"samples": 4, "quantile": [0, 0.5, 1], "length": [1, 5, 13]})"),
              ElementsAre(2, 4, 7, 11));
}

TEST_F(LengthFile, RefusesAQuantileFunctionThatIsNone) {
  EXPECT_THAT(error("q.json", R"({"quantile": [0, 1], "length": [1, 2]})"), HasSubstr("samples"));
  EXPECT_THAT(error("q.json", R"({"samples": 0, "quantile": [0, 1], "length": [1, 2]})"),
              HasSubstr("'samples' is 0"));
  EXPECT_THAT(error("q.json", R"({"samples": 2, "quantile": [0, 1], "length": [1]})"),
              HasSubstr("2 points and 'length' 1"));
  EXPECT_THAT(error("q.json", R"({"samples": 2, "quantile": [0, 0.9], "length": [1, 2]})"),
              HasSubstr("end with 1"));
  EXPECT_THAT(error("q.json", R"({"samples": 2, "quantile": [0, 0.5, 1], "length": [1, 5, 2]})"),
              HasSubstr("point 2 does not"));
  EXPECT_THAT(error("q.json", R"({"samples": 2, "quantile": [0, 1], "length": [0, 2]})"),
              HasSubstr("'length' number 0"));
  EXPECT_THAT(error("q.json", "[1"), HasSubstr("q.json"));
}

TEST_F(LengthFile, IsATokenShardOrADirectoryOfThem) {
  ASSERT_TRUE(files_.create_directories("d").ok());
  ASSERT_TRUE(ShardParts(rows_of_lengths({3, 5})).write(files_, "d/a.safetensors").ok());
  ASSERT_TRUE(ShardParts(rows_of_lengths({2})).write(files_, "d/b.safetensors").ok());
  EXPECT_THAT(*read_lengths(files_, "d/a.safetensors"), ElementsAre(3, 5));
  EXPECT_THAT(*read_lengths(files_, "d"), ElementsAre(3, 5, 2));
}

TEST(StandIn, HasThePublishedSize) {
  const std::vector<int32_t> lengths = stand_in_lengths();
  ASSERT_EQ(lengths.size(), 902087u);
  const double tokens = std::accumulate(lengths.begin(), lengths.end(), 0.0);
  EXPECT_NEAR(tokens, 1.866e9, 0.006e9);
  EXPECT_EQ(lengths.front(), 65);
  EXPECT_EQ(lengths.back(), 8190);
}

}  // namespace
}  // namespace percheron
