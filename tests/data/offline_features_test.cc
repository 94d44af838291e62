#include "data/offline_features.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/data/offline_features_fixture.h"

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(OfflineFeaturesTest, BothLayoutsGiveBackWhatWasCaptured) {
  for (const bool shards : {false, true}) {
    SCOPED_TRACE(shards ? "shards" : "samples");
    ASSERT_TRUE(files_.remove_all(kDirectory).ok());
    ASSERT_TRUE(files_.create_directories(kDirectory).ok());
    if (shards) {
      ASSERT_TRUE(write_feature_shard(files_, kDirectory, 0, make({0, 1, 2}), origin()).ok());
      ASSERT_TRUE(write_feature_shard(files_, kDirectory, 1, make({3, 4, 5}), origin()).ok());
    } else {
      write_samples({0, 1, 2, 3, 4, 5});
    }
    auto offline = open();
    ASSERT_TRUE(offline.ok()) << offline.status().message();
    EXPECT_EQ((*offline)->coverage().found, 6);
    EXPECT_EQ((*offline)->coverage().missing(), 0);
    const auto taken = (*offline)->take(pack({4, 0, 3}));
    ASSERT_TRUE(taken.ok()) << taken.status().message();
    const Features expected = make({4, 0, 3});
    EXPECT_THAT(taken->missing, IsEmpty());
    EXPECT_THAT(taken->without_top1, IsEmpty());
    EXPECT_EQ(taken->features.hidden_states, expected.hidden_states);
    EXPECT_EQ(taken->features.top1, expected.top1);
    EXPECT_EQ(taken->features.batch.sample_ids, expected.batch.sample_ids);
    EXPECT_EQ(taken->features.batch.loss_mask, expected.batch.loss_mask);
    EXPECT_EQ(taken->features.fingerprint, "digest");
    EXPECT_EQ((*offline)->counters().read, 3);
  }
}

TEST_F(OfflineFeaturesTest, SamplesThatAreNotThereAreMissingAndTheOthersMergeBack) {
  write_samples({1, 3});
  auto offline = open();
  ASSERT_TRUE(offline.ok()) << offline.status().message();
  EXPECT_EQ((*offline)->coverage().found, 2);
  EXPECT_EQ((*offline)->coverage().missing(), 4);
  const MicroBatch batch = pack({0, 1, 2, 3});
  const auto taken = (*offline)->take(batch);
  ASSERT_TRUE(taken.ok());
  EXPECT_THAT(taken->missing, ElementsAre(0, 2));
  EXPECT_EQ((*offline)->counters().absent, 2);
  const Features whole = make({0, 1, 2, 3});
  const Features merged = merge_documents(batch, taken->features, make({2, 0}));
  EXPECT_EQ(merged.hidden_states, whole.hidden_states);
  EXPECT_EQ(merged.top1, whole.top1);
  EXPECT_EQ(merged.batch.token_ids, whole.batch.token_ids);
  EXPECT_EQ(merged.batch.offsets, whole.batch.offsets);
}

TEST_F(OfflineFeaturesTest, MergedDocumentsKeepTheirPadding) {
  MicroBatch batch = pack({0, 1, 2});
  batch.padding = {1, 0, 2};
  Features first = make({0, 2}), second = make({1});
  first.batch.padding = {1, 2};
  second.batch.padding = {0};
  EXPECT_THAT(merge_documents(batch, first, second).batch.padding, ElementsAre(1, 0, 2));
}

// AngelSlim#288: a row of 100k tokens among short ones; the maximum length comes before any buffer.
TEST_F(OfflineFeaturesTest, AL288_LongRowIsCutBeforeAnyBufferIsMade) {
  write_samples({0, 5});
  select(8);
  auto offline = open();
  ASSERT_TRUE(offline.ok()) << offline.status().message();
  const auto taken = (*offline)->take(pack({5, 0}));
  ASSERT_TRUE(taken.ok());
  EXPECT_THAT(taken->missing, IsEmpty());
  EXPECT_EQ(taken->features.batch.offsets, (std::vector<int32_t>{0, 8, 13}));
  EXPECT_EQ(taken->features.hidden_states.size(), options_.shape.hidden_bytes(13));
  EXPECT_EQ(taken->features.hidden_states.capacity(), options_.shape.hidden_bytes(13));
  EXPECT_EQ(taken->features.top1[7], -1) << "the next token is cut off";
  EXPECT_EQ(taken->features.hidden_states, make({5, 0}).hidden_states);
}

TEST_F(OfflineFeaturesTest, WholeSamplesAreAskedForWhereAStateDependsOnTheLength) {
  write_samples({0, 5});
  select(8);
  options_.whole_samples_only = true;
  auto offline = open();
  ASSERT_TRUE(offline.ok()) << offline.status().message();
  EXPECT_THAT((*offline)->take(pack({5, 0}))->missing, ElementsAre(0));
  EXPECT_EQ((*offline)->counters().too_short, 1);
}

TEST_F(OfflineFeaturesTest, FilesThatCannotBeUsedAreCountedAndTheirSamplesMissing) {
  struct Case {
    const char* name;
    std::function<void(PeerFile&)> spoil;
    int64_t OfflineCounters::*counter;
  };
  const std::vector<Case> cases = {
      {"other tokens", [](PeerFile& f) { f.token_ids[2] ^= 1; }, &OfflineCounters::other_tokens},
      {"negative token", [](PeerFile& f) { f.token_ids[0] = -1; }, &OfflineCounters::other_tokens},
      {"NaN", [](PeerFile& f) { f.states[17] = std::nanf(""); }, &OfflineCounters::unusable},
      {"infinite", [](PeerFile& f) { f.states[1] = std::numeric_limits<float>::infinity(); },
       &OfflineCounters::unusable},
      {"slots",
       [](PeerFile& f) {
         f.slots = 2;
         f.states.resize(static_cast<size_t>(f.rows * 2 * f.hidden));
       },
       &OfflineCounters::unusable},
      {"hidden size",
       [](PeerFile& f) {
         f.hidden = 2;
         f.states.resize(static_cast<size_t>(f.rows * f.slots * 2));
       },
       &OfflineCounters::unusable},
      {"fewer tokens than states", [](PeerFile& f) { f.token_ids.pop_back(); },
       &OfflineCounters::unusable},
      {"short",
       [](PeerFile& f) {
         --f.rows;
         f.token_ids.pop_back();
         f.states.resize(static_cast<size_t>(f.rows * f.slots * f.hidden));
       },
       &OfflineCounters::too_short},
  };
  state_peer_slots({1, 2}, LastSlot::kBeforeNorm);
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.name);
    for (const uint64_t sample : {0, 1, 3, 4}) {
      PeerFile file(sample, rows_[sample].tokens);
      if (sample == 3) wrong.spoil(file);
      ASSERT_TRUE(file.write(files_, path_of(sample)).ok());
    }
    auto offline = open();
    ASSERT_TRUE(offline.ok()) << offline.status().message();
    const auto taken = (*offline)->take(pack({3, 4}));
    ASSERT_TRUE(taken.ok()) << taken.status().message();
    EXPECT_THAT(taken->missing, ElementsAre(0));
    EXPECT_EQ(taken->features.batch.sample_ids, (std::vector<uint64_t>{4}));
    const OfflineCounters counters = (*offline)->counters();
    EXPECT_EQ(counters.*wrong.counter, 1);
    EXPECT_EQ(counters.read, 1);
  }
}

TEST_F(OfflineFeaturesTest, TruncatedFilesAreMissingFromTheStart) {
  write_samples({0, 1, 3, 4});
  const std::string whole = files_.read_text(path_of(3)).value();
  for (const size_t size :
       {size_t{0}, size_t{7}, size_t{200}, whole.size() / 2, whole.size() - 1}) {
    SCOPED_TRACE(size);
    auto out = files_.create(path_of(3));
    ASSERT_TRUE(out.ok());
    ASSERT_TRUE((*out)->append(std::as_bytes(std::span(whole).first(size))).ok());
    auto offline = open();
    ASSERT_TRUE(offline.ok()) << offline.status().message();
    const auto taken = (*offline)->take(pack({3, 4}));
    ASSERT_TRUE(taken.ok());
    EXPECT_THAT(taken->missing, ElementsAre(0));
    EXPECT_EQ((*offline)->counters().unusable, 1);
    if (size <= whole.size() / 2) {
      EXPECT_EQ((*offline)->coverage().found, 3);
    }
  }
}

TEST_F(OfflineFeaturesTest, StatesOfAnotherTypeAreRefusedNamingTheTensor) {
  const std::vector<int32_t> wrong(static_cast<size_t>(kLengths[1] * 3 * kHidden), 1);
  const std::vector<int64_t> ids(rows_[1].tokens.begin(), rows_[1].tokens.end());
  const NamedTensor tensors[] = {
      {"hidden_states", ConstTensorView(wrong.data(), DType::kI32, {kLengths[1], 3, kHidden})},
      {"token_ids", view_of(std::span<const int64_t>(ids))}};
  ASSERT_TRUE(write_safetensors(files_, path_of(1), tensors, {}).ok());
  state_peer_slots({1, 2}, LastSlot::kBeforeNorm);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("hidden_states"), HasSubstr("I32"), HasSubstr("hs_1")));
}

TEST_F(OfflineFeaturesTest, ForeignFingerprintNamesTheFieldThatDiffers) {
  write_samples({0, 1});
  options_.fingerprint.set("target_hash", "def");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("features.from"), HasSubstr("target_hash 'abc'"),
                               HasSubstr("'def'"), HasSubstr("hs_0")));
}

TEST_F(OfflineFeaturesTest, FileThatLiesAboutItsTypeIsNotUsed) {
  write_samples({0, 1});
  options_.shape.dtype = DType::kBf16;  // without the fingerprint's word for it
  EXPECT_THAT(refusal(), AllOf(HasSubstr("F32"), HasSubstr("BF16")));
}

TEST_F(OfflineFeaturesTest, FeaturesOfOtherSamplesAreRefusedNotComputedInSilence) {
  for (const uint64_t sample : {0, 1, 3, 4, 5}) {
    std::vector<uint32_t> tokens = rows_[sample].tokens;
    for (uint32_t& token : tokens) token = (token + 1) % 100;
    ASSERT_TRUE(PeerFile(sample, tokens).write(files_, path_of(sample)).ok());
  }
  state_peer_slots({1, 2}, LastSlot::kBeforeNorm);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(kDirectory), HasSubstr("other tokens")));
}

TEST_F(OfflineFeaturesTest, DirectoriesWithoutFeaturesAreRefused) {
  EXPECT_THAT(refusal(), HasSubstr("holds no features"));
  ASSERT_TRUE(files_.create(join_path(kDirectory, "hs_0.safetensors.zst")).ok());
  EXPECT_THAT(refusal(), HasSubstr("hs_0.safetensors.zst is not read"));
  options_.directories = {"/nowhere"};
  EXPECT_THAT(refusal(), HasSubstr("/nowhere"));
}

TEST_F(OfflineFeaturesTest, PeersSlotsMustBeStated) {
  ASSERT_TRUE(PeerFile(3, rows_[3].tokens).write(files_, path_of(3)).ok());
  EXPECT_THAT(refusal(), HasSubstr("features.from_capture"));
  state_peer_slots({1}, LastSlot::kBeforeNorm);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("state 2"), HasSubstr("features.from_capture")));
  state_peer_slots({1, 2, 3}, LastSlot::kNone);
  EXPECT_THAT(refusal(), HasSubstr("features.from_last"));
  state_peer_slots({0, 1, 2}, LastSlot::kBeforeNorm);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("3 slots"), HasSubstr("4 follow")));
  state_peer_slots({1, 2}, LastSlot::kBeforeNorm);
  EXPECT_EQ(refusal(), "it was taken");
}

TEST_F(OfflineFeaturesTest, SlotsAreFoundByTheStateTheyHold) {
  ASSERT_TRUE(PeerFile(3, rows_[3].tokens).write(files_, path_of(3)).ok());
  state_peer_slots({2, 4, 1}, LastSlot::kNone);  // 4 is the last layer's output
  auto offline = open();
  ASSERT_TRUE(offline.ok()) << offline.status().message();
  const auto taken = (*offline)->take(pack({3}));
  ASSERT_TRUE(taken.ok());
  EXPECT_THAT(taken->without_top1, ElementsAre(0));
  const auto* values = taken->features.hidden_view().as<float>();
  const int64_t slots[] = {2, 0, 1};
  for (int64_t row = 0; row < kLengths[3]; ++row) {
    for (int64_t slot = 0; slot < 3; ++slot) {
      for (int64_t c = 0; c < kHidden; ++c) {
        EXPECT_EQ(*values++, state(3, row, slots[slot], c)) << row << " " << slot << " " << c;
      }
    }
  }
}

TEST_F(OfflineFeaturesTest, PeersFilesAreShownByAFewRowsAsTheyLieThere) {
  for (uint64_t sample = 0; sample < rows_.size(); ++sample) {
    ASSERT_TRUE(PeerFile(sample, rows_[sample].tokens).write(files_, path_of(sample)).ok());
  }
  state_peer_slots({1, 2}, LastSlot::kAfterNorm);
  for (const bool whole : {false, true}) {
    options_.whole_samples_only = whole;
    auto offline = open();
    ASSERT_TRUE(offline.ok()) << offline.status().message();
    ASSERT_EQ((*offline)->peer_files().size(), 1u);
    int64_t rows = 0;
    for (const PeerExcerpt& excerpt : (*offline)->peer_files()[0].excerpts) {
      rows += excerpt.rows;
      const auto sample = static_cast<uint64_t>(
          sample_of_file(excerpt.path.substr(excerpt.path.find_last_of('/') + 1)));
      EXPECT_EQ(static_cast<int64_t>(excerpt.tokens.size()),
                whole ? kLengths[sample] : excerpt.rows);
      ASSERT_EQ(excerpt.slots.size(), 3u);
      for (int64_t slot = 0; slot < 3; ++slot) {
        const PeerSlot& shown = excerpt.slots[static_cast<size_t>(slot)];
        EXPECT_EQ(shown.slot, slot);
        EXPECT_EQ(shown.state, slot < 2 ? slot + 1 : options_.target_layers + 1);
        EXPECT_EQ(shown.from_last, slot == 2);
        for (int64_t i = 0; i < excerpt.rows * kHidden; ++i) {
          EXPECT_EQ(shown.values[static_cast<size_t>(i)],
                    state(sample, i / kHidden, slot, i % kHidden));
        }
      }
    }
    EXPECT_EQ(rows, 16);
    EXPECT_EQ((*offline)->coverage().peer_rows, 16);
  }
}

TEST_F(OfflineFeaturesTest, StatesAfterTheNormAreDividedByItsWeight) {
  ASSERT_TRUE(PeerFile(3, rows_[3].tokens).write(files_, path_of(3)).ok());
  state_peer_slots({1, 2}, LastSlot::kAfterNorm);
  auto offline = open();
  ASSERT_TRUE(offline.ok()) << offline.status().message();
  const float zero[] = {1, 0, 1, 1}, weight[] = {2, 4, 0.5f, 1};
  EXPECT_THAT((*offline)->set_final_norm(zero).message(), HasSubstr("after_norm"));
  ASSERT_TRUE((*offline)->set_final_norm(weight).ok());
  const auto taken = (*offline)->take(pack({3}));
  ASSERT_TRUE(taken.ok());
  const auto* values = taken->features.hidden_view().as<float>();
  for (int64_t c = 0; c < kHidden; ++c) {
    EXPECT_EQ(values[kHidden + c], state(3, 0, 1, c)) << "as it is";
    EXPECT_EQ(values[2 * kHidden + c], state(3, 0, 2, c) / weight[c]);
  }
}

TEST_F(OfflineFeaturesTest, FloatsBeyondBf16AreNotFinite) {
  for (const uint64_t sample : {0, 1}) {
    PeerFile file(sample, rows_[sample].tokens);
    if (sample == 0) file.states[3] = 3.4e38f;
    ASSERT_TRUE(file.write(files_, path_of(sample)).ok());
  }
  state_peer_slots({1, 2}, LastSlot::kBeforeNorm);
  options_.shape.dtype = DType::kBf16;
  auto offline = open();
  ASSERT_TRUE(offline.ok()) << offline.status().message();
  const auto taken = (*offline)->take(pack({0, 1}));
  ASSERT_TRUE(taken.ok());
  EXPECT_THAT(taken->missing, ElementsAre(0));
  EXPECT_EQ(taken->features.hidden_view().as<uint16_t>()[5], bf16_from_float(state(1, 0, 1, 1)));
}

TEST_F(OfflineFeaturesTest, Top1BeyondTheVocabularyIsNotUsed) {
  write_samples({0, 1, 3});
  options_.target_vocab_size = 15;  // sample 3 has 10 .. 20
  auto offline = open();
  ASSERT_TRUE(offline.ok()) << offline.status().message();
  EXPECT_THAT((*offline)->take(pack({0, 3}))->missing, ElementsAre(1));
}

// SpecForge#733: all files were read before the first step.
TEST_F(OfflineFeaturesTest, SF733_OnlyAFewFilesAreReadAhead) {
  std::vector<int64_t> lengths(500, 3);
  rows_ = rows_of_lengths(lengths);
  ASSERT_TRUE(ShardParts(rows_).write(files_, "/data/train.safetensors").ok());
  train_ = std::move(open_dataset(files_, {"/data/train.safetensors"})).value();
  select(64);
  std::vector<uint64_t> samples;
  for (uint64_t i = 0; i < lengths.size(); ++i) samples.push_back(i);
  write_samples(samples);
  const uint64_t before = files_.operation_count();
  auto offline = open();
  ASSERT_TRUE(offline.ok()) << offline.status().message();
  EXPECT_EQ((*offline)->coverage().found, 500);
  // A size each, a list, and the few that are looked into.
  EXPECT_LE(files_.operation_count() - before, 500u + 20u);
}

TEST_F(OfflineFeaturesTest, ShardsWithBadOffsetsAreLeftOutAndTheRestServes) {
  ASSERT_TRUE(write_feature_shard(files_, kDirectory, 0, make({0, 1}), origin()).ok());
  Features broken = make({3, 4});
  broken.batch.offsets[1] = broken.batch.offsets[2];
  ASSERT_TRUE(write_feature_shard(files_, kDirectory, 1, broken, origin()).ok());
  auto offline = open();
  ASSERT_TRUE(offline.ok()) << offline.status().message();
  EXPECT_EQ((*offline)->coverage().found, 2);
  EXPECT_THAT((*offline)->take(pack({1, 3}))->missing, ElementsAre(1));
}

TEST_F(OfflineFeaturesTest, FailedWriteLeavesNoFile) {
  const Features features = make({0});
  files_.fill_disk_after(100);
  const Status status = write_sample_features(files_, kDirectory, features, 0, origin());
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(files_.list(kDirectory).value(), IsEmpty());
}

TEST_F(OfflineFeaturesTest, FilesAreNoLargerThanTheEstimate) {
  write_samples({0, 5});
  ASSERT_TRUE(write_feature_shard(files_, kDirectory, 0, make({0, 3, 5}), origin()).ok());
  for (const uint64_t sample : {0, 5}) {
    EXPECT_LE(files_.file_size(path_of(sample)).value(),
              sample_file_bytes(options_.shape, kLengths[sample], origin()));
  }
  EXPECT_LE(files_.file_size(join_path(kDirectory, shard_file_name(0))).value(),
            shard_file_bytes(options_.shape, 5 + 12 + 30, 3, origin()));
}

}  // namespace
}  // namespace percheron
