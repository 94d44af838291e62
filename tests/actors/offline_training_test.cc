// Training from files of features is training from the live target.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "actors/offline_feature_maker.h"
#include "actors/run_plan.h"
#include "data/feature_file.h"
#include "tests/actors/offline_features.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kLossTolerance = 1e-6;

/// A run's losses, and what it said.
struct Trained {
  RecordingObserver observer;
  RunSummary summary;
  std::string masters;
};

std::unique_ptr<Trained> trained(proto::Run run, const std::string& output) {
  auto result = std::make_unique<Trained>();
  run.mutable_output()->set_directory(no_directory(output));
  const auto summary = train_tiny(run, result->observer);
  EXPECT_TRUE(summary.ok()) << summary.status().message();
  if (!summary.ok()) return result;
  result->summary = *summary;
  result->masters = latest_masters(run);
  return result;
}

void expect_same_losses(const Trained& expected, const Trained& got, double tolerance) {
  ASSERT_EQ(expected.observer.steps().size(), got.observer.steps().size());
  for (size_t i = 0; i < expected.observer.steps().size(); ++i) {
    const StepReport &a = expected.observer.steps()[i], &b = got.observer.steps()[i];
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.supervised, b.supervised);
    EXPECT_NEAR(a.loss, b.loss, tolerance * std::abs(a.loss)) << "step " << i;
  }
}

struct OfflineCase {
  const char* name;
  bool dflash;
  proto::Features::Dtype dtype;
  CaptureLayout layout;
};

class OfflineTraining : public testing::TestWithParam<OfflineCase> {};

TEST_P(OfflineTraining, FromFilesIsFromTheLiveTargetBitForBit) {
  const OfflineCase& how = GetParam();
  proto::Run run = make_tiny_run("offline", {.held_out = 5, .epochs = 3, .dflash = how.dflash});
  run.mutable_features()->set_dtype(how.dtype);
  const auto live = trained(run, "offline_live");
  run.mutable_features()->add_from(captured(run, "offline_files", how.layout));
  const auto files = trained(run, "offline_from_files");
  expect_same_losses(*live, *files, kLossTolerance);
  EXPECT_EQ(live->masters, files->masters);
  EXPECT_EQ(counter(files->summary, "samples_from_files_since_start"), 3 * 24);
  EXPECT_EQ(counter(files->summary, "samples_not_in_files_since_start"), 0);
  EXPECT_TRUE(files->observer.heard("24 of 24 samples lie in"));
  ASSERT_EQ(live->observer.evaluations().size(), files->observer.evaluations().size());
  for (size_t i = 0; i < live->observer.evaluations().size(); ++i) {
    EXPECT_EQ(live->observer.evaluations()[i].acceptance_length_walk,
              files->observer.evaluations()[i].acceptance_length_walk);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Drafters, OfflineTraining,
    testing::Values(
        OfflineCase{"Eagle3Samples", false, proto::Features::F32, CaptureLayout::kSamples},
        OfflineCase{"Eagle3Shards", false, proto::Features::F32, CaptureLayout::kShards},
        OfflineCase{"Eagle3Bf16", false, proto::Features::BF16, CaptureLayout::kSamples},
        OfflineCase{"DflashSamples", true, proto::Features::F32, CaptureLayout::kSamples},
        OfflineCase{"DflashShardsBf16", true, proto::Features::BF16, CaptureLayout::kShards}),
    [](const auto& info) { return info.param.name; });

/// Every forward pass ends the test.
class NoTarget final : public FeatureMaker {
 public:
  Result<std::unique_ptr<FeaturesUnderWay>> begin(Context&, MicroBatch) override {
    return internal_error("the target was asked, though everything lies in files");
  }
};

TEST(OfflineSetup, WhenEverythingIsThereTheTargetsLayersAreNotLoaded) {
  proto::Run run = make_tiny_run("no_layers");
  const auto live = plan_run(*resolve_run(run, system_files()).value(), system_files());
  ASSERT_TRUE(live.ok()) << live.status().message();
  run.mutable_features()->add_from(captured(run, "no_layers_files"));
  const auto setup = resolve_run(run, system_files()).value();
  const auto plan = plan_run(*setup, system_files());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  // Four toy layers; the rest is a table of rotary angles.
  EXPECT_LT(plan->devices[0].target_bytes + 100'000, live->devices[0].target_bytes);
  EXPECT_EQ(plan->devices[1].trainer_bytes, live->devices[1].trainer_bytes);
  EXPECT_THAT(plan->text(),
              AllOf(HasSubstr("24 of 24 samples lie in"), HasSubstr("layers are not loaded")));

  const std::atomic<int> none{0};
  RecordingObserver observer;
  auto parts = make_run_parts(setup, {system_files(), system_clock(), observer, none});
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  TargetPlace& place = (*parts)->targets[0];
  OfflineFeatureMaker maker(*(*parts)->offline, *(*parts)->models.begin()->second,
                            std::make_unique<NoTarget>());
  const Status status = place.worker->run([&](Context& context) -> Status {
    for (int64_t i = 0; i < 3; ++i) {
      PERCHERON_ASSIGN_OR_RETURN(const MadeFeatures made,
                                 maker.make(context, (*parts)->batches->make({0, i})));
      EXPECT_EQ(made.computed_tokens, 0);
    }
    return ok_status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(OfflineSetup, FileThatFailsLaterLoadsTheLayersAndIsComputed) {
  proto::Run run = make_tiny_run("fails_later", {.epochs = 2});
  const auto live = trained(run, "fails_later_live");
  const std::string files = captured(run, "fails_later_files");
  // As long as before, so that only its use shows it.
  const std::string path = join_path(files, sample_file_name(7));
  std::string bytes = read_file(path);
  bytes[0] = '\x7f';
  write_file(path, bytes);
  run.mutable_features()->add_from(files);
  const auto mixed = trained(run, "fails_later_mixed");
  expect_same_losses(*live, *mixed, kLossTolerance);
  EXPECT_EQ(counter(mixed->summary, "samples_unusable_in_files_since_start"), 2);
  EXPECT_EQ(counter(mixed->summary, "samples_from_files_since_start"), 2 * 23);
}

TEST(OfflineSetup, WhatIsNotThereIsComputedAndCounted) {
  proto::Run run = make_tiny_run("hybrid", {.epochs = 3});
  const auto live = trained(run, "hybrid_live");
  const std::string files = captured(run, "hybrid_files");
  for (uint64_t sample = 1; sample < 24; sample += 2) {
    std::filesystem::remove(join_path(files, sample_file_name(sample)));
  }
  run.mutable_features()->add_from(files);
  run.mutable_features()->set_cache_memory_bytes_max(100 << 20);
  place(run, 2, 1);
  const auto hybrid = trained(run, "hybrid_mixed");
  expect_same_losses(*live, *hybrid, 1e-5);
  EXPECT_EQ(counter(hybrid->summary, "samples_from_files_since_start"), 3 * 12);
  EXPECT_EQ(counter(hybrid->summary, "samples_not_in_files_since_start"), 3 * 12);
  EXPECT_TRUE(hybrid->observer.heard("12 of 24 samples lie in"));
  EXPECT_TRUE(hybrid->observer.heard("12 are computed"));
  EXPECT_TRUE(hybrid->observer.heard("36 samples were taken from files, 36 were not found"));
}

TEST(OfflineSetup, SeveralDirectoriesCompleteEachOther) {
  proto::Run run = make_tiny_run("two_directories");
  const std::string first = captured(run, "two_directories_a");
  const std::string second = captured(run, "two_directories_b", CaptureLayout::kShards);
  for (uint64_t sample = 0; sample < 20; ++sample) {
    std::filesystem::remove(join_path(first, sample_file_name(sample)));
  }
  run.mutable_features()->add_from(first);
  run.mutable_features()->add_from(second);
  const auto plan = plan_run(*resolve_run(run, system_files()).value(), system_files());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->offline->missing(), 0);
}

TEST(OfflineSetup, FeaturesOfAnotherRunAreRefusedNamingTheField) {
  proto::Run run = make_tiny_run("other_run");
  const std::string files = captured(run, "other_run_files");
  const auto refusal = [&](proto::Run other) {
    other.mutable_features()->add_from(files);
    const auto plan = plan_run(*resolve_run(other, system_files()).value(), system_files());
    RecordingObserver observer;
    const auto summary = train_tiny(other, observer);
    EXPECT_FALSE(summary.ok());
    EXPECT_EQ(summary.status().message(), plan.status().message());
    return plan.status().message();
  };
  proto::Run other = run;
  other.mutable_drafter()->set_capture(2, 4);
  EXPECT_THAT(refusal(other), AllOf(HasSubstr("features.from"), HasSubstr("capture '1,2,3'"),
                                    HasSubstr("'1,2,4'")));
  other = run;
  other.mutable_features()->set_dtype(proto::Features::BF16);
  EXPECT_THAT(refusal(other), HasSubstr("features.dtype"));
  other = run;
  other.mutable_target()->set_weights(proto::Target::FP8);
  EXPECT_THAT(refusal(other), HasSubstr("target.weights"));
  other = run;
  *other.mutable_data()->mutable_train(0) =
      make_tiny_run("other_run_data", {.samples = 23}).data().train(0);
  EXPECT_THAT(refusal(other), HasSubstr("data.train"));
  // Another loss, another draft vocabulary: the same features.
  other = run;
  other.mutable_drafter()->set_draft_vocab_size(40);
  other.mutable_features()->add_from(files);
  EXPECT_TRUE(plan_run(*resolve_run(other, system_files()).value(), system_files()).ok());
}

TEST(OfflineSetup, SettingsThatContradictEachOtherAreRefused) {
  struct Case {
    const char* part;
    std::function<void(proto::Run&)> change;
  };
  const std::vector<Case> cases = {
      {"data.order", [](auto& run) { run.mutable_data()->set_order(proto::Data::SORTED); }},
      {"state 9", [](auto& run) { run.mutable_features()->add_from_capture(9); }},
      {"features.from_last",
       [](auto& run) { run.mutable_features()->set_from_last(proto::Features::AFTER_NORM); }},
  };
  for (const Case& wrong : cases) {
    proto::Run run = make_tiny_run("contradiction");
    run.mutable_features()->add_from("/features");
    wrong.change(run);
    const auto setup = resolve_run(run, system_files());
    ASSERT_FALSE(setup.ok());
    EXPECT_THAT(setup.status().message(), AllOf(HasSubstr(wrong.part), HasSubstr("features.from")));
  }
}

TEST(OfflineSetup, CaptureForDflashWithTheLastStateServesEagle3Too) {
  proto::Run dflash = make_tiny_run("shared_capture", {.dflash = true});
  CaptureOptions options;
  options.directory = no_directory("shared_capture_files");
  options.last = CaptureLast::kAlways;
  RecordingCapture observer;
  ASSERT_TRUE(capture_tiny(dflash, options, observer).ok());
  proto::Run eagle3 = dflash;
  eagle3.mutable_drafter()->set_kind(proto::Drafter::EAGLE3);
  eagle3.mutable_drafter()->clear_block_size();
  eagle3.mutable_drafter()->set_draft_vocab_size(48);
  for (proto::Run* run : {&dflash, &eagle3}) {
    const auto live = trained(*run, "shared_capture_live");
    run->mutable_features()->add_from(options.directory);
    const auto files = trained(*run, "shared_capture_from_files");
    expect_same_losses(*live, *files, kLossTolerance);
  }
}

TEST(OfflineSetup, PeersFilesTrainAsTheLiveTargetOnceTheirSlotsAreStated) {
  proto::Run run = make_tiny_run("peer", {.epochs = 2});
  const auto live = trained(run, "peer_live");
  const std::string own = captured(run, "peer_own");
  proto::Run peer = run;
  peer.mutable_features()->add_from(peers_files(own, "peer_files", DType::kF32));
  RecordingObserver observer;
  EXPECT_THAT(train_tiny(peer, observer).status().message(), HasSubstr("features.from_capture"));
  for (const int64_t state : {1, 2, 3}) peer.mutable_features()->add_from_capture(state);
  EXPECT_THAT(train_tiny(peer, observer).status().message(), HasSubstr("features.from_last"));
  peer.mutable_features()->set_from_last(proto::Features::BEFORE_NORM);
  const auto files = trained(peer, "peer_from_files");
  expect_same_losses(*live, *files, kLossTolerance);
  EXPECT_EQ(live->masters, files->masters) << "top-1 ids are chosen from the last state";
  EXPECT_EQ(counter(files->summary, "samples_from_files_since_start"), 2 * 24);
}

TEST(OfflineSetup, PeersStatesAfterTheNormTeachTheSame) {
  proto::Run run = make_tiny_run("peer_norm", {.epochs = 2});
  const auto live = trained(run, "peer_norm_live");
  const auto norm = make_toy_model(7).tensors.at("model.norm.weight");
  const std::string own = captured(run, "peer_norm_own");
  run.mutable_features()->add_from(
      peers_files(own, "peer_norm_files", DType::kF32, after_norm(norm)));
  for (const int64_t state : {1, 2, 3}) run.mutable_features()->add_from_capture(state);
  run.mutable_features()->set_from_last(proto::Features::AFTER_NORM);
  const auto files = trained(run, "peer_norm_from_files");
  // The norm is applied to what is normed already: rounding and its epsilon.
  expect_same_losses(*live, *files, 1e-4);
}

TEST(OfflineSetup, PeersBf16TrainsAsTheRunsBf16) {
  proto::Run run = make_tiny_run("peer_bf16", {.epochs = 2, .dflash = true});
  const std::string own = captured(run, "peer_bf16_own");
  run.mutable_features()->set_dtype(proto::Features::BF16);
  const auto live = trained(run, "peer_bf16_live");
  run.mutable_features()->add_from(peers_files(own, "peer_bf16_files", DType::kBf16));
  for (const int64_t state : {1, 2, 3}) run.mutable_features()->add_from_capture(state);
  const auto files = trained(run, "peer_bf16_from_files");
  expect_same_losses(*live, *files, kLossTolerance);
  EXPECT_EQ(live->masters, files->masters);
}

}  // namespace
}  // namespace percheron
