// Bounded fuzzing of the readers of data/: mutated files must be read or refused, never crash, hang
// or read outside their bytes (run under the asan preset). PERCHERON_FUZZ_ROUNDS raises the effort,
// PERCHERON_FUZZ_SEED replays a failure.

#include <gtest/gtest.h>

#include <functional>

#include "data/cache_file.h"
#include "data/checkpoint.h"
#include "data/checkpoint_manifest.h"
#include "data/feature_file.h"
#include "data/training_state.h"
#include "data/vocabulary_map.h"
#include "tests/base/fault_file_system.h"
#include "tests/data/shards.h"
#include "tests/fuzz/mutate.h"

namespace percheron {
namespace {

// Mutates `whole` many times and lets `read` try each at `path`.
void fuzz(FileSystem& files, const std::string& path, const std::function<void()>& read) {
  fuzz_bytes(files.read_text(path).value(), [&](const std::string& bytes) {
    auto file = files.create(path);
    ASSERT_TRUE(file.ok() && (*file)->append(std::as_bytes(std::span(bytes))).ok());
    file->reset();
    read();
  });
}

// Touches every byte of every tensor, so that a sanitizer sees views that lead outside.
uint64_t sum_of(const SafetensorsFile& file) {
  uint64_t sum = 0;
  for (const auto& [name, view] : file.tensors()) {
    const auto* bytes = static_cast<const uint8_t*>(view.data());
    for (size_t i = 0; i < view.bytes(); ++i) sum += bytes[i];
  }
  return sum;
}

TEST(DataFuzz, SafetensorsAreReadOrRefused) {
  FaultFileSystem files;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const NamedTensor tensors[] = {{"a.b", ConstTensorView(values.data(), DType::kF32, {2, 3})},
                                 {"c", ConstTensorView(values.data(), DType::kBf16, {3})},
                                 {"e", ConstTensorView(values.data(), DType::kU8, {0})}};
  ASSERT_TRUE(write_safetensors(files, "t", tensors, {{"format", "pt"}}).ok());
  fuzz(files, "t", [&] {
    const auto file = SafetensorsFile::open(files, "t");
    if (file.ok()) (void)sum_of(*file);
  });
}

TEST(DataFuzz, TokenShardsAreReadOrRefused) {
  FaultFileSystem files;
  ASSERT_TRUE(ShardParts(rows_of_lengths({3, 1, 5})).write(files, "t.safetensors").ok());
  fuzz(files, "t.safetensors", [&] {
    const auto dataset = open_dataset(files, {"t.safetensors"});
    if (!dataset.ok()) return;
    ASSERT_GT(dataset->supervised_tokens(), 0);
    for (int64_t i = 0; i < dataset->samples(); ++i) {
      ASSERT_EQ(dataset->tokens(i).size(), dataset->mask(i).size());
      for (const uint32_t token : dataset->tokens(i))
        ASSERT_LT(token, static_cast<uint64_t>(dataset->passport().vocab_size));
      (void)dataset->describe(i);
    }
  });
}

TEST(DataFuzz, VocabularyMapsAreReadOrRefused) {
  FaultFileSystem files;
  const std::vector<int64_t> d2t = {1, 1, 3};
  const std::vector<uint8_t> t2d = {0, 1, 1, 0, 0, 1};
  const NamedTensor tensors[] = {{"d2t", view_of(std::span<const int64_t>(d2t))},
                                 {"t2d", ConstTensorView(t2d.data(), DType::kBool, {6})}};
  ASSERT_TRUE(write_safetensors(files, "t", tensors, {}).ok());
  fuzz(files, "t", [&] {
    const auto file = SafetensorsFile::open(files, "t");
    if (!file.ok()) return;
    const auto vocabulary = DraftVocabulary::read(*file, 6);
    if (vocabulary.ok()) {
      ASSERT_LT(vocabulary->target_ids().back(), 6);
    }
  });
}

TEST(DataFuzz, ManifestsAreReadOrRefused) {
  FaultFileSystem files;
  const CheckpointFile contents[] = {{"a/b", std::string("text")}};
  Fingerprint fingerprint;
  fingerprint.set("target_hash", "t");
  ASSERT_TRUE(write_checkpoint(files, "o", 1, contents, fingerprint).ok());
  fuzz(files, "o/step-00000001/manifest.json", [&] {
    const auto info = verify_checkpoint(files, "o/step-00000001");
    // The checksum lets only white space change.
    if (info.ok()) {
      ASSERT_EQ(info->fingerprint, fingerprint);
    }
    ASSERT_TRUE(find_latest(files, "o").ok());
  });
}

TEST(DataFuzz, CacheFilesAreReadOrRefused) {
  FaultFileSystem files;
  const std::string payload = "some features";
  {
    auto file = CacheFile::create(files, "c", "{\"header\": 1}");
    ASSERT_TRUE(file.ok());
    for (uint64_t sample = 0; sample < 3; ++sample)
      ASSERT_TRUE((*file)->append({sample, 2, 7}, std::as_bytes(std::span(payload))).ok());
  }
  fuzz(files, "c", [&] {
    const auto file = CacheFile::open(files, "c");
    if (!file.ok()) return;
    for (const CacheFile::Entry& entry : (*file)->entries()) {
      const auto read = (*file)->read(entry);
      ASSERT_TRUE(read.ok());
      uint64_t sum = 0;
      for (const std::byte byte : read->bytes) sum += static_cast<uint64_t>(byte);
      (void)sum;
    }
  });
}

// One sample's file and a shard.
TEST(DataFuzz, FeatureFilesAreReadOrRefused) {
  FaultFileSystem files;
  Features features;
  features.batch = {{0, 0}, {1, 2, 3, 4, 5}, {0, 1, 1, 0, 1}, {0, 2, 5}, {7, 8}, {}};
  features.dtype = DType::kBf16;
  features.slots = 2;
  features.hidden_size = 3;
  features.hidden_states.resize(features.shape().hidden_bytes(5));
  features.top1 = {1, -1, 2, 3, -1};
  FeatureOrigin origin{{1, 2}, false, {}};
  origin.fingerprint.set("target_hash", "t");
  ASSERT_TRUE(files.create_directories("d").ok());
  ASSERT_TRUE(write_sample_features(files, "d", features, 1, origin).ok());
  ASSERT_TRUE(write_feature_shard(files, "d", 0, features, origin).ok());
  for (const std::string& path : {"d/" + sample_file_name(8), "d/" + shard_file_name(0)}) {
    fuzz(files, path, [&] {
      const auto file = FeatureFile::open(files, path);
      if (!file.ok()) return;
      const std::vector<uint32_t> tokens(9, 1);
      int64_t sum = 0;
      for (int64_t d = 0; d < file->documents(); ++d) {
        const ConstTensorView states = file->states(d);
        ASSERT_EQ(states.dim(0), file->rows(d));
        const auto* bytes = static_cast<const uint8_t*>(states.data());
        for (size_t i = 0; i < states.bytes(); ++i) sum += bytes[i];
        for (const int32_t id : file->top1(d)) sum += id;
        sum += file->begins_with(d, tokens) ? 1 : 0;
      }
      for (const int64_t sample : file->sample_ids()) sum ^= sample;
      const std::string* text = file->fingerprint_text();
      if (text != nullptr) (void)Fingerprint::parse(*text, path);
    });
  }
}

TEST(DataFuzz, TrainingStatesAreReadOrRefused) {
  FaultFileSystem files;
  proto::TrainingState state;
  state.set_step(3);
  state.set_epoch(1);
  state.set_next_micro_batch(4);
  state.set_micro_batches_per_step(2);
  state.set_seed(42);
  Fingerprint fingerprint;
  fingerprint.set("target_hash", "t");
  set_fingerprint(fingerprint, state);
  ASSERT_TRUE(write_text_atomically(files, "s", training_state_text(state)).ok());
  fuzz(files, "s", [&] {
    const auto read = parse_training_state(*files.read_text("s"), "s");
    if (read.ok()) (void)fingerprint_of(*read);
  });
}

TEST(DataFuzz, PassportsAndFingerprintsAreReadOrRefused) {
  FaultFileSystem files;
  const Passport passport = {"a", "b", "c", "d", 5};
  ASSERT_TRUE(write_text_atomically(files, "p", passport_json(passport)).ok());
  fuzz(files, "p", [&] {
    const auto read = parse_passport(*files.read_text("p"), "p");
    if (read.ok()) (void)make_fingerprint({*read, "", {}, "", -1, ""});
  });
  ASSERT_TRUE(
      write_text_atomically(files, "f", make_fingerprint({passport, "", {1}, "", 2, ""}).text())
          .ok());
  fuzz(files, "f", [&] {
    const std::string text = *files.read_text("f");
    const auto read = Fingerprint::parse(text, "f");
    if (read.ok()) {
      ASSERT_EQ(read->text(), text);
    }
  });
}

}  // namespace
}  // namespace percheron
