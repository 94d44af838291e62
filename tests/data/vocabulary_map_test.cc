#include "data/vocabulary_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/fault_file_system.h"
#include "tests/data/shards.h"

namespace percheron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(DraftVocabulary, TakesTheMostFrequentAndTheLowestOfEquals) {
  const std::vector<int64_t> counts = {0, 5, 2, 0, 2, 9, 2, 0};
  const auto vocabulary = DraftVocabulary::most_frequent(counts, 4, 8, "data");
  ASSERT_TRUE(vocabulary.ok());
  EXPECT_THAT(vocabulary->target_ids(), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(vocabulary->d2t(), ElementsAre(1, 1, 2, 2));
  EXPECT_THAT(vocabulary->t2d(), ElementsAre(0, 1, 1, 0, 1, 1, 0, 0));
  EXPECT_DOUBLE_EQ(vocabulary->coverage(counts), 18.0 / 20.0);
  EXPECT_EQ(vocabulary->data_hash(), "data");
}

TEST(DraftVocabulary, FillsUpWithTheLowestUnusedIds) {
  const std::vector<int64_t> counts = {0, 0, 0, 0, 7, 0};
  EXPECT_THAT(DraftVocabulary::most_frequent(counts, 3, 6, "")->target_ids(), ElementsAre(0, 1, 4));
}

TEST(DraftVocabulary, NeverTakesPaddedRowsOfTheEmbedding) {      // vllm#55133
  const std::vector<int64_t> counts = {0, 1, 0, 0, 0, 0, 0, 0};  // 8 rows, 5 tokens
  const auto vocabulary = DraftVocabulary::most_frequent(counts, 5, 5, "");
  ASSERT_TRUE(vocabulary.ok());
  EXPECT_EQ(vocabulary->target_ids().back(), 4);
  EXPECT_EQ(vocabulary->target_size(), 8);
  const auto refused = DraftVocabulary::most_frequent(counts, 6, 5, "");
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("draft_vocab_size is 6"));
  EXPECT_FALSE(DraftVocabulary::most_frequent(counts, 0, 5, "").ok());
  EXPECT_FALSE(DraftVocabulary::most_frequent(counts, 5, 9, "").ok());
}

TEST(DraftVocabulary, CountsSupervisedTokensOnlyAndReportsHeldOutCoverage) {
  FaultFileSystem files;
  ASSERT_TRUE(ShardParts({{{1, 2, 2, 3}, {0, 1, 1, 1}, ""}}).write(files, "a.safetensors").ok());
  ASSERT_TRUE(ShardParts({{{2, 9, 9, 3}, {1, 1, 1, 1}, ""}}).write(files, "b.safetensors").ok());
  const auto train = open_dataset(files, {"a.safetensors"});
  const auto held_out = open_dataset(files, {"b.safetensors"});
  const auto counts = count_supervised_tokens(*train, 128);
  EXPECT_EQ(counts[1], 0);
  EXPECT_EQ(counts[2], 2);
  EXPECT_EQ(counts.size(), 128u);
  const auto vocabulary = DraftVocabulary::most_frequent(counts, 2, 100, train->content_hash());
  // Automodel#3032: 100 % on the counted rows tells nothing.
  EXPECT_DOUBLE_EQ(vocabulary->coverage(counts), 1.0);
  EXPECT_DOUBLE_EQ(vocabulary->coverage(count_supervised_tokens(*held_out, 128)), 0.5);
}

class DraftVocabularyFile : public testing::Test {
 protected:
  Result<DraftVocabulary> read(int64_t vocab_size = 6) {
    const NamedTensor tensors[] = {
        {"d2t", view_of(std::span<const int64_t>(d2t_))},
        {"t2d", ConstTensorView(t2d_.data(), t2d_type_, {static_cast<int64_t>(t2d_.size())})}};
    EXPECT_TRUE(
        write_safetensors(files_, "drafter", tensors, {{kDraftVocabularyDataHash, "abc"}}).ok());
    return DraftVocabulary::read(*SafetensorsFile::open(files_, "drafter"), vocab_size);
  }
  void expect_refused(const std::string& complaint) {
    const auto vocabulary = read();
    ASSERT_FALSE(vocabulary.ok());
    EXPECT_THAT(vocabulary.status().message(), HasSubstr(complaint));
    EXPECT_THAT(vocabulary.status().message(), HasSubstr("drafter"));
  }

  FaultFileSystem files_;
  std::vector<int64_t> d2t_ = {1, 1, 3};  // ids 1, 2, 5
  std::vector<uint8_t> t2d_ = {0, 1, 1, 0, 0, 1};
  DType t2d_type_ = DType::kBool;
};

TEST_F(DraftVocabularyFile, ReadsBackTheSameMap) {
  for (const DType type : {DType::kBool, DType::kU8}) {
    t2d_type_ = type;
    const auto vocabulary = read();
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
    EXPECT_THAT(vocabulary->target_ids(), ElementsAre(1, 2, 5));
    EXPECT_EQ(vocabulary->d2t(), d2t_);
    EXPECT_EQ(vocabulary->t2d(), t2d_);
    EXPECT_EQ(vocabulary->data_hash(), "abc");
  }
}

TEST_F(DraftVocabularyFile, RefusesMapsThatServingWouldMisread) {
  d2t_ = {1, 1, 4};
  expect_refused("d2t[2] = 4");
  d2t_ = {1, -1, 3};
  expect_refused("d2t[1] = -1");
  d2t_ = {2, 0, 3};
  expect_refused("d2t[1] = 0 makes target ids that do not ascend");
  d2t_ = {1, 1};
  expect_refused("t2d marks 3 ids, d2t has 2");
  d2t_ = {1, 1, 2};
  expect_refused("t2d does not mark");
  d2t_ = {1, 1, std::numeric_limits<int64_t>::max()};
  expect_refused("outside");
  d2t_ = {1, 1, 3};
  t2d_[0] = 2;
  expect_refused("t2d[0]");
  t2d_[0] = 0;
  EXPECT_FALSE(read(7).ok());
  t2d_type_ = DType::kU8;
  d2t_.clear();
  expect_refused("0 entries");
}

TEST_F(DraftVocabularyFile, RefusesADrafterWithoutTheMap) {  // Automodel#2447
  const NamedTensor tensors[] = {{"d2t", view_of(std::span<const int64_t>(d2t_))}};
  ASSERT_TRUE(write_safetensors(files_, "drafter", tensors, {}).ok());
  const auto vocabulary = DraftVocabulary::read(*SafetensorsFile::open(files_, "drafter"), 6);
  EXPECT_EQ(vocabulary.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(vocabulary.status().message(), HasSubstr("'t2d'"));
}

}  // namespace
}  // namespace percheron
