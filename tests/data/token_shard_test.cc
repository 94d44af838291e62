#include "data/token_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/base/fault_file_system.h"
#include "tests/data/shards.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<ShardRow> kRows = {
    {{1, 2, 3}, {0, 1, 1}, "first"}, {{4}, {0}, ""}, {{99, 0, 5, 6}, {0, 0, 0, 1}, "third"}};

TEST(TokenDataset, GivesTheRowsOfItsShardsInOrder) {
  FaultFileSystem files;
  ASSERT_TRUE(files.create_directories("shards").ok());
  ASSERT_TRUE(ShardParts({kRows[0], kRows[1]}).write(files, "shards/a.safetensors").ok());
  ASSERT_TRUE(ShardParts({kRows[2]}).write(files, "shards/b.safetensors").ok());
  ASSERT_TRUE(write_text_atomically(files, "shards/README", "not a shard").ok());
  const auto dataset = open_dataset(files, {"shards"});
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  ASSERT_EQ(dataset->samples(), 3);
  EXPECT_EQ(dataset->length(2), 4);
  EXPECT_THAT(dataset->tokens(2), ElementsAre(99, 0, 5, 6));
  EXPECT_THAT(dataset->mask(0), ElementsAre(0, 1, 1));
  EXPECT_EQ(dataset->id(2), "third");
  EXPECT_EQ(dataset->id(1), "");
  EXPECT_EQ(dataset->supervised(0), 2);
  EXPECT_EQ(dataset->total_tokens(), 8);
  EXPECT_EQ(dataset->supervised_tokens(), 3);
  EXPECT_EQ(dataset->samples_without_supervision(), 1);
  EXPECT_EQ(dataset->passport().vocab_size, 100);
  EXPECT_EQ(dataset->describe(2), "shards/b.safetensors row 0 (third)");
}

TEST(TokenDataset, ContentHashDoesNotDependOnTheCutIntoShards) {
  FaultFileSystem files;
  ASSERT_TRUE(ShardParts(kRows).write(files, "all.safetensors").ok());
  ASSERT_TRUE(ShardParts({kRows[0]}).write(files, "a.safetensors").ok());
  ASSERT_TRUE(ShardParts({kRows[1], kRows[2]}).write(files, "b.safetensors").ok());
  const std::string whole = open_dataset(files, {"all.safetensors"})->content_hash();
  EXPECT_EQ(open_dataset(files, {"a.safetensors", "b.safetensors"})->content_hash(), whole);
  EXPECT_NE(open_dataset(files, {"b.safetensors", "a.safetensors"})->content_hash(), whole);
  std::vector<ShardRow> changed = kRows;  // The same tokens and masks, cut elsewhere.
  changed[0] = {{1, 2}, {0, 1}, ""};
  changed[1] = {{3, 4}, {1, 0}, ""};
  ASSERT_TRUE(ShardParts(changed).write(files, "c.safetensors").ok());
  EXPECT_NE(open_dataset(files, {"c.safetensors"})->content_hash(), whole);
}

TEST(TokenDataset, WorksWithoutIds) {
  FaultFileSystem files;
  ShardParts parts(kRows);
  parts.with_ids = false;
  ASSERT_TRUE(parts.write(files, "t.safetensors").ok());
  const auto dataset = open_dataset(files, {"t.safetensors"});
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  EXPECT_EQ(dataset->id(0), "");
}

struct BadShard {
  const char* name;
  std::function<void(ShardParts&)> spoil;
  std::string complaint;
};

class TokenDatasetRefuses : public testing::TestWithParam<BadShard> {};

TEST_P(TokenDatasetRefuses, NamingShardAndValue) {
  FaultFileSystem files;
  ShardParts parts(kRows);
  GetParam().spoil(parts);
  ASSERT_TRUE(parts.write(files, "bad.safetensors").ok());
  const auto dataset = open_dataset(files, {"bad.safetensors"});
  ASSERT_FALSE(dataset.ok());
  EXPECT_EQ(dataset.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(dataset.status().message(),
              AllOf(HasSubstr("bad.safetensors"), HasSubstr(GetParam().complaint)));
}

INSTANTIATE_TEST_SUITE_P(
    All, TokenDatasetRefuses,
    testing::Values(
        BadShard{"token", [](ShardParts& p) { p.tokens[5] = 100; }, "row 2: token id 100"},
        BadShard{"huge_token", [](ShardParts& p) { p.tokens[0] = ~0u; },
                 "row 0: token id 4294967295"},
        BadShard{"mask", [](ShardParts& p) { p.mask[3] = 2; }, "row 1: loss_mask has the value 2"},
        BadShard{"no_supervision",  // SpecForge#392: nothing learned for a whole epoch
                 [](ShardParts& p) { p.mask.assign(p.mask.size(), 0); }, "supervised"},
        BadShard{"empty_row", [](ShardParts& p) { p.offsets[1] = 0; }, "row 0 go from 0 to 0"},
        BadShard{"descending", [](ShardParts& p) { p.offsets[1] = 6; }, "row 1 go from 6 to 4"},
        BadShard{"negative", [](ShardParts& p) { p.offsets[1] = -1; }, "row 0 go from 0 to -1"},
        BadShard{"beyond",
                 [](ShardParts& p) { p.offsets[1] = p.offsets[2] = p.offsets[3] = 1 << 30; },
                 "row 0 end at 1073741824"},
        BadShard{"start", [](ShardParts& p) { p.offsets[0] = 1; }, "begin at 1"},
        BadShard{"short_end", [](ShardParts& p) { p.offsets.back() = 7; }, "end at 7"},
        BadShard{"no_offsets", [](ShardParts& p) { p.offsets.clear(); }, "is empty"},
        BadShard{"ids", [](ShardParts& p) { p.id_offsets[1] = 99; }, "id_offsets"},
        BadShard{"mask_length", [](ShardParts& p) { p.mask.pop_back(); }, "'loss_mask'"},
        BadShard{"format", [](ShardParts& p) { p.format = "pt"; }, "'pt'"},
        BadShard{"vocab", [](ShardParts& p) { p.passport.vocab_size = 0; }, "vocab_size is 0"},
        BadShard{"hash", [](ShardParts& p) { p.passport.source_hash = ""; }, "source_hash"}),
    [](const auto& info) { return info.param.name; });

TEST(TokenDataset, RefusesShardsOfAnotherTokenizer) {
  FaultFileSystem files;
  ShardParts first(kRows), second(kRows);
  second.passport.tokenizer_hash = "other";
  ASSERT_TRUE(first.write(files, "a.safetensors").ok());
  ASSERT_TRUE(second.write(files, "b.safetensors").ok());
  const auto dataset = open_dataset(files, {"a.safetensors", "b.safetensors"});
  ASSERT_FALSE(dataset.ok());
  EXPECT_THAT(dataset.status().message(), AllOf(HasSubstr("tokenizer_hash"), HasSubstr("'tok'"),
                                                HasSubstr("'other'"), HasSubstr("b.safetensors")));
}

TEST(TokenDataset, KnowsHowItsShardsWerePreparedWhereTheyAgree) {
  FaultFileSystem files;
  ShardParts parts(kRows);
  parts.options = "{\"thinking\": \"drop\"}";
  ASSERT_TRUE(parts.write(files, "a.safetensors").ok());
  ASSERT_TRUE(parts.write(files, "b.safetensors").ok());
  EXPECT_EQ(open_dataset(files, {"a.safetensors", "b.safetensors"})->options(), parts.options);
  parts.options.clear();
  ASSERT_TRUE(parts.write(files, "b.safetensors").ok());
  for (const auto& paths : {std::vector<std::string>{"a.safetensors", "b.safetensors"},
                            std::vector<std::string>{"b.safetensors", "a.safetensors"}}) {
    EXPECT_EQ(open_dataset(files, paths)->options(), "");
  }
}

TEST(TokenDataset, JoinsShardsOfSeveralSources) {
  FaultFileSystem files;
  ShardParts first(kRows), second(kRows);
  second.passport.source_hash = "other";
  ASSERT_TRUE(first.write(files, "a.safetensors").ok());
  ASSERT_TRUE(second.write(files, "b.safetensors").ok());
  const auto dataset = open_dataset(files, {"a.safetensors", "b.safetensors"});
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  EXPECT_EQ(dataset->samples(), 6);
  EXPECT_NE(dataset->passport().source_hash, "src");
  EXPECT_NE(dataset->passport().source_hash, "other");
}

TEST(TokenDataset, SaysWhatIsMissing) {
  FaultFileSystem files;
  ASSERT_TRUE(files.create_directories("empty").ok());
  EXPECT_EQ(open_dataset(files, {"nowhere"}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(open_dataset(files, {"empty"}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(open_dataset(files, {}).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(ShardParts({}).write(files, "none.safetensors").ok());
  EXPECT_THAT(open_dataset(files, {"none.safetensors"}).status().message(),
              HasSubstr("hold no sample"));
}

TEST(TokenDataset, ReadsAShardThatPrepareWrote) {
  const auto dataset =
      open_dataset(system_files(), {"tests/golden_data/tokens/python.safetensors"});
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  ASSERT_EQ(dataset->samples(), 3);
  EXPECT_THAT(dataset->tokens(0), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(dataset->mask(0), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(dataset->tokens(1), ElementsAre(9));
  EXPECT_THAT(dataset->tokens(2), ElementsAre(49151, 0, 1));
  EXPECT_EQ(dataset->id(0), "chat-0");
  EXPECT_EQ(dataset->id(1), "");
  EXPECT_EQ(dataset->id(2), "\xc3\xa9t\xc3\xa9");
  EXPECT_EQ(dataset->passport(), (Passport{"t", "c", "s", "o", 49152}));
}

}  // namespace
}  // namespace percheron
