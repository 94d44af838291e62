// What a capture writes, when it refuses, and that it goes on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "data/feature_file.h"
#include "tests/actors/offline_features.h"
#include "tests/base/forwarding_file_system.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CaptureOptions options_for(const std::string& name,
                           CaptureLayout layout = CaptureLayout::kSamples) {
  CaptureOptions options;
  options.directory = no_directory(name);
  options.layout = layout;
  options.shard_bytes = 40'000;
  return options;
}

int64_t feature_files(const std::string& directory) {
  int64_t count = 0;
  const std::vector<std::string> names = system_files().list(directory).value();
  for (const std::string& name : names) {
    count += sample_of_file(name) >= 0 || is_shard_name(name) ? 1 : 0;
  }
  return count;
}

TEST(Capture, WritesAFileForEachSampleAsPeersDo) {
  const proto::Run run = make_tiny_run("capture_samples");
  const CaptureOptions options = options_for("capture_samples_out");
  RecordingCapture observer;
  const auto summary = capture_tiny(run, options, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(summary->captured, 24);
  EXPECT_EQ(summary->found, 0);
  EXPECT_EQ(feature_files(options.directory), 24);
  EXPECT_EQ(observer.progress().back().samples, 24);
  const auto setup = resolve_run(run, system_files()).value();
  for (int64_t sample = 0; sample < 24; ++sample) {
    const auto file = SafetensorsFile::open(
        system_files(),
        join_path(options.directory, "hs_" + std::to_string(sample) + ".safetensors"));
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto tokens = setup->data.train->tokens(sample);
    const auto rows = static_cast<int64_t>(tokens.size());
    const int64_t states[] = {rows, 4, 32}, ids[] = {rows};
    EXPECT_TRUE(file->tensor("hidden_states", DType::kF32, states).ok());
    const auto stored = file->tensor("token_ids", DType::kI64, ids);
    ASSERT_TRUE(stored.ok()) << stored.status().message();
    for (int64_t t = 0; t < rows; ++t) {
      ASSERT_EQ(stored->as<int64_t>()[t], static_cast<int64_t>(tokens[static_cast<size_t>(t)]));
    }
    EXPECT_EQ(file->metadata().at("format"), "percheron.features.v1");
    EXPECT_EQ(file->metadata().at("capture"), "1,2,3");
    EXPECT_THAT(file->metadata().at("fingerprint"), HasSubstr("target_hash: "));
  }
}

TEST(Capture, ShardsHoldTheSameStatesAsFilesOfOneSample) {
  const proto::Run run = make_tiny_run("capture_shards");
  const CaptureOptions samples = options_for("capture_shards_a");
  const CaptureOptions shards = options_for("capture_shards_b", CaptureLayout::kShards);
  RecordingCapture observer;
  ASSERT_TRUE(capture_tiny(run, samples, observer).ok());
  const auto summary = capture_tiny(run, shards, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(summary->captured, 24);
  const int64_t count = feature_files(shards.directory);
  EXPECT_GT(count, 2);
  EXPECT_LT(count, 24);
  int64_t documents = 0;
  for (int64_t shard = 0; shard < count; ++shard) {
    const std::string path = join_path(shards.directory, shard_file_name(shard));
    EXPECT_LE(system_files().file_size(path).value(), shards.shard_bytes);
    const auto file = FeatureFile::open(system_files(), path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    for (int64_t d = 0; d < file->documents(); ++d, ++documents) {
      const auto sample = static_cast<uint64_t>(file->sample_ids()[static_cast<size_t>(d)]);
      const auto alone =
          FeatureFile::open(system_files(), join_path(samples.directory, sample_file_name(sample)));
      ASSERT_TRUE(alone.ok()) << alone.status().message();
      const ConstTensorView a = file->states(d), b = alone->states(0);
      ASSERT_EQ(a.bytes(), b.bytes());
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0) << "sample " << sample;
      EXPECT_TRUE(std::ranges::equal(file->top1(d), alone->top1(0)));
    }
  }
  EXPECT_EQ(documents, 24);
}

TEST(Capture, EveryDeviceOfThePlacementWritesTheSameFiles) {
  proto::Run run = make_tiny_run("capture_devices");
  RecordingCapture observer;
  const CaptureOptions one = options_for("capture_devices_1");
  ASSERT_TRUE(capture_tiny(run, one, observer).ok());
  place(run, 3, 1);
  const CaptureOptions three = options_for("capture_devices_3");
  ASSERT_TRUE(capture_tiny(run, three, observer).ok());
  EXPECT_EQ(contents_of(one.directory), contents_of(three.directory));
}

TEST(Capture, EightBitWeightsGiveFeaturesOfTheirOwnTheSameOnTwoDevices) {
  proto::Run run = make_tiny_run("capture_int8");
  RecordingCapture silent, observer;
  const CaptureOptions full = options_for("capture_int8_full");
  ASSERT_TRUE(capture_tiny(run, full, silent).ok());
  EXPECT_FALSE(silent.heard("target weights"));
  run.mutable_target()->set_weights(proto::Target::INT8);
  const CaptureOptions one = options_for("capture_int8_1");
  ASSERT_TRUE(capture_tiny(run, one, observer).ok());
  EXPECT_TRUE(
      observer.heard("target weights: int8, one scale per output channel; top-1 agreement"));
  EXPECT_TRUE(observer.heard("over 512 training tokens"));
  const auto path = [](const CaptureOptions& options) {
    return join_path(options.directory, sample_file_name(3));
  };
  const auto int8 = SafetensorsFile::open(system_files(), path(one)).value();
  const auto other = SafetensorsFile::open(system_files(), path(full)).value();
  EXPECT_THAT(int8.metadata().at("fingerprint"), HasSubstr("target.weights: int8"));
  EXPECT_EQ(other.metadata().at("fingerprint").find("target.weights"), std::string::npos)
      << "features from before there were others go on";
  const ConstTensorView a = int8.tensor("hidden_states").value();
  const ConstTensorView b = other.tensor("hidden_states").value();
  ASSERT_EQ(a.bytes(), b.bytes());
  EXPECT_NE(std::memcmp(a.data(), b.data(), a.bytes()), 0);

  place(run, 2, 1);
  const CaptureOptions two = options_for("capture_int8_2");
  ASSERT_TRUE(capture_tiny(run, two, observer).ok());
  EXPECT_EQ(contents_of(one.directory), contents_of(two.directory));
}

TEST(Capture, GoesOnWhereItEndedAndMakesDamagedFilesAgain) {
  const proto::Run run = make_tiny_run("capture_resume");
  for (const CaptureLayout layout : {CaptureLayout::kSamples, CaptureLayout::kShards}) {
    const bool shards = layout == CaptureLayout::kShards;
    SCOPED_TRACE(shards ? "shards" : "samples");
    const CaptureOptions options = options_for("capture_resume_out", layout);
    RecordingCapture first, second, third;
    ASSERT_TRUE(capture_tiny(run, options, first).ok());
    const auto whole = contents_of(options.directory);
    const auto again = capture_tiny(run, options, second);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->captured, 0);
    EXPECT_EQ(again->found, 24);

    const auto name = [&](int64_t n) {
      return join_path(options.directory,
                       shards ? shard_file_name(n) : sample_file_name(static_cast<uint64_t>(n)));
    };
    std::filesystem::remove(name(0));
    std::filesystem::resize_file(name(1), std::filesystem::file_size(name(1)) / 2);
    write_file(name(2) + std::string(kUnfinishedSuffix), "half of it");
    const auto mended = capture_tiny(run, options, third);
    ASSERT_TRUE(mended.ok()) << mended.status().message();
    EXPECT_EQ(mended->captured + mended->found, 24);
    EXPECT_GE(mended->captured, 2);
    EXPECT_GE(mended->remade, 1);
    EXPECT_TRUE(third.heard("are kept"));
    EXPECT_TRUE(third.heard("damaged"));
    EXPECT_EQ(contents_of(options.directory), whole) << "bit for bit, and nothing unfinished";
  }
}

TEST(Capture, ForeignDirectoryIsRefusedNamingTheField) {
  proto::Run run = make_tiny_run("capture_foreign");
  const CaptureOptions options = options_for("capture_foreign_out");
  RecordingCapture observer;
  ASSERT_TRUE(capture_tiny(run, options, observer).ok());
  const auto before = contents_of(options.directory);
  const auto refusal = [&](const proto::Run& other, const CaptureOptions& how) {
    const auto summary = capture_tiny(other, how, observer);
    return summary.ok() ? "it was taken" : summary.status().message();
  };
  proto::Run other = run;
  other.mutable_drafter()->set_capture(0, 2);
  other.mutable_drafter()->set_capture(1, 3);
  other.mutable_drafter()->set_capture(2, 4);
  EXPECT_THAT(refusal(other, options), AllOf(HasSubstr("capture '1,2,3'"), HasSubstr("'2,3,4'")));
  other = run;
  other.mutable_features()->set_dtype(proto::Features::BF16);
  EXPECT_THAT(refusal(other, options), HasSubstr("features.dtype 'F32'"));
  other = make_tiny_run("capture_foreign_data", {.samples = 25});
  EXPECT_THAT(refusal(other, options), HasSubstr("data.train"));
  other = make_tiny_run("capture_poisoned_target", {.poisoned = 1});
  *other.mutable_data() = run.data();
  EXPECT_THAT(refusal(other, options), HasSubstr("target_hash"));
  CaptureOptions shards = options;
  shards.layout = CaptureLayout::kShards;
  EXPECT_THAT(refusal(run, shards), AllOf(HasSubstr("layout 'samples'"),
                                          HasSubstr("give the same to go on, or a new directory")));
  EXPECT_EQ(contents_of(options.directory), before) << "a refusal changes nothing";

  CaptureOptions elsewhere = options_for("capture_foreign_files");
  ASSERT_TRUE(system_files().create_directories(elsewhere.directory).ok());
  write_file(join_path(elsewhere.directory, "thesis.tex"), "years of work");
  EXPECT_THAT(refusal(run, elsewhere), HasSubstr("thesis.tex"));
  EXPECT_EQ(contents_of(elsewhere.directory).size(), 1u);
}

TEST(Capture, DraftVocabularyIsNoReasonToCaptureAgain) {
  proto::Run run = make_tiny_run("capture_vocabulary");
  const CaptureOptions options = options_for("capture_vocabulary_out");
  RecordingCapture observer;
  ASSERT_TRUE(capture_tiny(run, options, observer).ok());
  run.mutable_drafter()->set_draft_vocab_size(32);
  const auto summary = capture_tiny(run, options, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(summary->found, 24);
}

TEST(Capture, BudgetIsHardAndRefusedOrFilled) {
  const proto::Run run = make_tiny_run("capture_budget");
  const auto setup = resolve_run(run, system_files()).value();
  for (const CaptureLayout layout : {CaptureLayout::kSamples, CaptureLayout::kShards}) {
    CaptureOptions options = options_for("capture_budget_out", layout);
    const uint64_t whole = plan_capture(*setup, options).value().bytes;
    options.bytes_max = whole;
    ASSERT_TRUE(plan_capture(*setup, options).ok());
    options.bytes_max = whole / 2;
    const auto refused = plan_capture(*setup, options);
    EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(refused.status().message(),
                AllOf(HasSubstr("--bytes-max"), HasSubstr("--partial")));
    EXPECT_FALSE(system_files().exists(options.directory));

    options.over_budget = OverBudget::kCaptureWhatFits;
    RecordingCapture observer;
    const auto summary = capture_tiny(run, options, observer);
    ASSERT_TRUE(summary.ok()) << summary.status().message();
    EXPECT_GT(summary->captured, 4);
    EXPECT_LT(summary->captured, 20);
    uint64_t bytes = 0;
    for (const auto& [name, text] : contents_of(options.directory)) bytes += text.size();
    EXPECT_LE(bytes, options.bytes_max);
    // A larger budget goes on from there.
    options.bytes_max = whole;
    const auto rest = capture_tiny(run, options, observer);
    ASSERT_TRUE(rest.ok()) << rest.status().message();
    EXPECT_EQ(rest->found, summary->captured);
    EXPECT_EQ(rest->found + rest->captured, 24);

    options.bytes_max = 100;
    EXPECT_THAT(plan_capture(*setup, options).status().message(), HasSubstr("not one file fits"));
  }
}

TEST(Capture, EstimateIsWithinAFewPercentOfWhatIsWritten) {
  const proto::Run run = make_tiny_run("capture_estimate");
  const auto setup = resolve_run(run, system_files()).value();
  const CaptureOptions options = options_for("capture_estimate_out", CaptureLayout::kShards);
  const CapturePlan plan = plan_capture(*setup, options).value();
  RecordingCapture observer;
  const auto summary = capture_tiny(run, options, observer);
  ASSERT_TRUE(summary.ok());
  EXPECT_LE(summary->bytes, plan.bytes);
  // Headers of toy shards are large beside their states.
  EXPECT_GT(static_cast<double>(summary->bytes), 0.8 * static_cast<double>(plan.bytes));
  EXPECT_THAT(plan.text(options), AllOf(HasSubstr("24 samples"), HasSubstr("shards")));
}

TEST(Capture, SamplesWhoseStatesAreNotFiniteAreLeftOutAndSaid) {
  TinyOptions tiny;
  tiny.poisoned = 3;  // of 24: more than a run would bear
  proto::Run run = make_tiny_run("capture_poisoned", tiny);
  run.mutable_features()->set_dtype(proto::Features::BF16);
  for (const CaptureLayout layout : {CaptureLayout::kSamples, CaptureLayout::kShards}) {
    const CaptureOptions options = options_for("capture_poisoned_out", layout);
    RecordingCapture observer;
    const auto summary = capture_tiny(run, options, observer);
    ASSERT_TRUE(summary.ok()) << summary.status().message();
    EXPECT_EQ(summary->captured, 21);
    EXPECT_EQ(summary->not_finite, 3);
    for (const char* sample : {"sample 5 ", "sample 6 ", "sample 7 "}) {
      EXPECT_TRUE(observer.heard(sample)) << sample;
    }
    EXPECT_THAT(read_file(join_path(options.directory, kCaptureSetFile)),
                HasSubstr("\"not_finite\": 3"));
    const auto before = contents_of(options.directory);
    RecordingCapture second;
    const auto again = capture_tiny(run, options, second);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->captured, 0);
    EXPECT_EQ(again->found, 21);
    EXPECT_EQ(again->not_finite, 3);
    EXPECT_EQ(second.progress().back().samples, 21);
    EXPECT_EQ(second.progress().back().not_finite, 3);
    EXPECT_EQ(contents_of(options.directory), before);
  }
}

TEST(Capture, GoesOnAfterAKillWhileItsOwnFileWasWritten) {
  const proto::Run run = make_tiny_run("capture_killed_set");
  const CaptureOptions options = options_for("capture_killed_set_out");
  const std::string left = join_path(options.directory, std::string(kCaptureSetFile) + ".new");
  ASSERT_TRUE(system_files().create_directories(options.directory).ok());
  for (const int64_t found : {0, 24}) {
    write_file(left, "{");
    RecordingCapture observer;
    const auto summary = capture_tiny(run, options, observer);
    ASSERT_TRUE(summary.ok()) << summary.status().message();
    EXPECT_EQ(summary->found, found);
    EXPECT_FALSE(system_files().exists(left));
  }
}

TEST(Capture, UnderADynamicRopeLongerFilesAreNoBeginningsOfShorterSamples) {
  TinyOptions tiny;
  proto::Run run = make_tiny_run("capture_dynamic", tiny);
  const CaptureOptions options = options_for("capture_dynamic_out");
  const auto capture = [&](RopeType type, int32_t length_max) {
    auto setup = std::make_shared<RunSetup>(*resolve_run(run, system_files()).value());
    setup->target.rope.type = type;
    for (int32_t& length : setup->data.selection.lengths) length = std::min(length, length_max);
    RecordingCapture observer;
    return capture_to_files(setup, options, plan_capture(*setup, options).value(), system_files(),
                            system_clock(), observer);
  };
  for (const RopeType type : {RopeType::kDefault, RopeType::kDynamic}) {
    ASSERT_TRUE(system_files().remove_all(options.directory).ok());
    ASSERT_TRUE(capture(type, 1000).ok());
    const auto shorter = capture(type, 4);
    ASSERT_TRUE(shorter.ok()) << shorter.status().message();
    EXPECT_EQ(shorter->found, type == RopeType::kDynamic ? 0 : 24);
  }
}

/// The operating system's files until so many files of features were written; then the disk is
/// full.
class FillingDisk final : public ForwardingFileSystem {
 public:
  explicit FillingDisk(int64_t files) : left_(files) {}
  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    if (path.ends_with(kUnfinishedSuffix) && left_-- <= 0) {
      return resource_exhausted("cannot write " + path + ": No space left on device");
    }
    return ForwardingFileSystem::create(path);
  }
  Result<uint64_t> free_bytes(const std::string& path) override {
    if (free_) return *free_;
    return ForwardingFileSystem::free_bytes(path);
  }
  void set_free_bytes(uint64_t bytes) { free_ = bytes; }

 private:
  std::atomic<int64_t> left_;
  std::optional<uint64_t> free_;
};

TEST(Capture, FullDiskIsOneErrorAndLosesNothing) {
  proto::Run run = make_tiny_run("capture_full");
  place(run, 2, 1);
  const auto setup = resolve_run(run, system_files()).value();
  const CaptureOptions options = options_for("capture_full_out");
  const auto capture = [&](FileSystem& files) {
    RecordingCapture observer;
    return capture_to_files(setup, options, plan_capture(*setup, options).value(), files,
                            system_clock(), observer);
  };
  FillingDisk disk(9);
  const auto full = capture(disk);
  EXPECT_EQ(full.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(full.status().message(), AllOf(HasSubstr("9 of 24 samples are captured and stay"),
                                             HasSubstr("No space left")));
  EXPECT_EQ(feature_files(options.directory), 9);
  EXPECT_EQ(contents_of(options.directory).size(), 10u) << "nothing unfinished";
  const auto rest = capture(system_files());
  ASSERT_TRUE(rest.ok()) << rest.status().message();
  EXPECT_EQ(rest->found, 9);
  EXPECT_EQ(rest->captured, 15);
}

TEST(Capture, DiskThatIsTooSmallIsRefusedAtTheStart) {
  const proto::Run run = make_tiny_run("capture_small_disk");
  const auto setup = resolve_run(run, system_files()).value();
  const CaptureOptions options = options_for("capture_small_disk_out");
  FillingDisk disk(100);
  disk.set_free_bytes(1000);
  RecordingCapture observer;
  const auto refused = capture_to_files(setup, options, plan_capture(*setup, options).value(), disk,
                                        system_clock(), observer);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("1000 B left"), HasSubstr("--partial")));
  EXPECT_FALSE(system_files().exists(options.directory));
}

}  // namespace
}  // namespace percheron
