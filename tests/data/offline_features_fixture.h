#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/offline_features.h"
#include "tests/base/fault_file_system.h"
#include "tests/data/shards.h"

namespace percheron {

inline constexpr int64_t kHidden = 4;
inline constexpr const char* kDirectory = "/features";
inline const std::vector<int64_t> kLengths = {5, 9, 1, 12, 7, 30};

/// Any state, by what it belongs to.
inline float state(uint64_t sample, int64_t row, int64_t slot, int64_t channel) {
  return static_cast<float>(sample) * 100 + static_cast<float>(row) +
         static_cast<float>(slot) * 0.25f + static_cast<float>(channel) * 0.03125f;
}

/// A peer's file as tests like to break it.
struct PeerFile {
  int64_t rows = 0, slots = 3, hidden = kHidden;
  std::vector<float> states;
  std::vector<int64_t> token_ids;

  PeerFile(uint64_t sample, const std::vector<uint32_t>& tokens)
      : rows(static_cast<int64_t>(tokens.size())), token_ids(tokens.begin(), tokens.end()) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t slot = 0; slot < slots; ++slot) {
        for (int64_t c = 0; c < hidden; ++c) states.push_back(state(sample, row, slot, c));
      }
    }
  }
  Status write(FileSystem& files, const std::string& path) const {
    const NamedTensor tensors[] = {
        {"hidden_states", ConstTensorView(states.data(), DType::kF32, {rows, slots, hidden})},
        {"token_ids", view_of(std::span<const int64_t>(token_ids))}};
    return write_safetensors(files, path, tensors, {{"format", "pt"}});
  }
};

/// A small data set with samples of kLengths, and features of them to write and to expect.
class OfflineFeaturesTest : public testing::Test {
 protected:
  void SetUp() override {
    rows_ = rows_of_lengths(kLengths);
    ASSERT_TRUE(files_.create_directories("/data").ok());
    ASSERT_TRUE(files_.create_directories(kDirectory).ok());
    ASSERT_TRUE(ShardParts(rows_).write(files_, "/data/train.safetensors").ok());
    auto dataset = open_dataset(files_, {"/data/train.safetensors"});
    ASSERT_TRUE(dataset.ok()) << dataset.status().message();
    train_ = std::move(dataset).value();
    select(64);
    options_.directories = {kDirectory};
    options_.shape = {DType::kF32, 3, kHidden, true, true};
    options_.capture = {1, 2};
    options_.target_layers = 4;
    options_.target_vocab_size = 100;
    options_.fingerprint.set("target_hash", "abc");
    options_.fingerprint.set("capture", "1,2");
    options_.run_fingerprint = "digest";
  }

  void select(int64_t token_budget) {
    PlanOptions plan;
    plan.token_budget = token_budget;
    plan.too_long = TooLong::kTruncate;
    plan.unsupervised = Unsupervised::kKeep;
    auto selection = select_samples(train_, plan);
    ASSERT_TRUE(selection.ok());
    selection_ = std::move(selection).value();
  }

  MicroBatch pack(const std::vector<uint64_t>& samples) const {
    MicroBatch batch;
    batch.offsets = {0};
    for (const uint64_t sample : samples) {
      const auto length = static_cast<size_t>(selection_.lengths[sample]);
      const auto tokens = train_.tokens(static_cast<int64_t>(sample)).first(length);
      const auto mask = train_.mask(static_cast<int64_t>(sample)).first(length);
      batch.token_ids.insert(batch.token_ids.end(), tokens.begin(), tokens.end());
      batch.loss_mask.insert(batch.loss_mask.end(), mask.begin(), mask.end());
      batch.offsets.push_back(static_cast<int32_t>(batch.tokens()));
      batch.sample_ids.push_back(sample);
    }
    return batch;
  }

  Features make(const std::vector<uint64_t>& samples) const {
    Features features;
    features.batch = pack(samples);
    features.dtype = DType::kF32;
    features.slots = 3;
    features.hidden_size = kHidden;
    features.has_last = true;
    std::vector<float> values;
    for (size_t d = 0; d < samples.size(); ++d) {
      const int64_t rows = features.batch.offsets[d + 1] - features.batch.offsets[d];
      for (int64_t row = 0; row < rows; ++row) {
        features.top1.push_back(row + 1 < rows ? static_cast<int32_t>(10 + row) : -1);
        for (int64_t slot = 0; slot < 3; ++slot) {
          for (int64_t c = 0; c < kHidden; ++c) values.push_back(state(samples[d], row, slot, c));
        }
      }
    }
    const auto bytes = std::as_bytes(std::span(values));
    features.hidden_states.assign(bytes.begin(), bytes.end());
    return features;
  }

  FeatureOrigin origin() const { return {options_.capture, true, options_.fingerprint}; }

  void write_samples(const std::vector<uint64_t>& samples) {
    const Features features = make(samples);
    for (int32_t d = 0; d < static_cast<int32_t>(samples.size()); ++d) {
      ASSERT_TRUE(write_sample_features(files_, kDirectory, features, d, origin()).ok());
    }
  }

  std::string path_of(uint64_t sample) const {
    return join_path(kDirectory, sample_file_name(sample));
  }

  Result<std::unique_ptr<OfflineFeatures>> open() {
    return OfflineFeatures::open(files_, options_, train_, selection_);
  }
  std::string refusal() {
    const auto opened = open();
    return opened.ok() ? "it was taken" : opened.status().message();
  }

  void state_peer_slots(std::vector<int64_t> capture, LastSlot last) {
    options_.peer_capture = std::move(capture);
    options_.peer_last = last;
  }

  FaultFileSystem files_;
  std::vector<ShardRow> rows_;
  TokenDataset train_;
  SampleSelection selection_;
  OfflineOptions options_;
};

}  // namespace percheron
