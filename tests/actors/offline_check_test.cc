// A peer's files are compared with the live target before anything learns from them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "actors/run_plan.h"
#include "tests/actors/offline_features.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What peers get wrong in silence, with the number of slots right: layer ids off by one
// (TorchSpec#87, TorchSpec#89, speculators#705, speculators#753, vllm#43671), the last state normed
// or not (speculators#313), features misaligned to tokens (SpecForge#654).
class OfflineCheck : public testing::Test {
 protected:
  /// A run whose drafter and loss read states 1, 2, 3 and the last.
  proto::Run run(bool dflash = false) { return make_tiny_run("run", {.dflash = dflash}); }

  /// A peer's files of these states, captured with the last one.
  std::string files_of(proto::Run run, const std::vector<int64_t>& states, DType dtype,
                       const PeerChange& change = {}) {
    run.mutable_drafter()->clear_capture();
    for (const int64_t state : states) run.mutable_drafter()->add_capture(state);
    const std::string name = std::string("offline_check_") +
                             testing::UnitTest::GetInstance()->current_test_info()->name() +
                             std::to_string(++directories_);
    return peers_files(captured(run, name + "_own"), name, dtype, change);
  }

  static void state(proto::Run& run, const std::string& files, const std::vector<int64_t>& states,
                    proto::Features::FromLast last) {
    proto::Features& features = *run.mutable_features();
    features.add_from(files);
    features.clear_from_capture();
    for (const int64_t held : states) features.add_from_capture(held);
    features.set_from_last(last);
  }

  /// Why the run is refused; it trains nothing and leaves nothing.
  static std::string refusal(const proto::Run& run) {
    EXPECT_TRUE(system_files().remove_all(run.output().directory()).ok());
    RecordingObserver observer;
    const auto summary = train_tiny(run, observer);
    EXPECT_FALSE(summary.ok()) << "it trained";
    EXPECT_TRUE(observer.steps().empty());
    EXPECT_FALSE(system_files().exists(run.output().directory()));
    return summary.status().message();
  }

  static std::vector<float> norm() { return make_toy_model(7).tensors.at("model.norm.weight"); }

 private:
  int directories_ = 0;
};

constexpr auto kBefore = proto::Features::BEFORE_NORM;
constexpr auto kAfter = proto::Features::AFTER_NORM;

TEST_F(OfflineCheck, WhatIsStatedRightlyTrainsAndIsSaid) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const auto last : {kBefore, kAfter}) {
      proto::Run peer = run();
      state(peer,
            files_of(peer, {1, 2, 3}, dtype, last == kAfter ? after_norm(norm()) : PeerChange()),
            {1, 2, 3}, last);
      const auto plan = plan_run(*resolve_run(peer, system_files()).value(), system_files());
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      EXPECT_THAT(plan->text(),
                  HasSubstr("the target runs over 16 of their rows, to check that the slots"));
      RecordingObserver observer;
      const auto summary = train_tiny(peer, observer);
      EXPECT_TRUE(summary.ok()) << summary.status().message();
      EXPECT_TRUE(observer.heard("4 slots of files without Percheron's metadata are the target's"));
      EXPECT_TRUE(observer.heard("by 16 rows; the worst, slot "));
      EXPECT_TRUE(observer.heard("the target's layers are not kept unless a file fails"));
    }
  }
}

TEST_F(OfflineCheck, OneSlotOffByOneIsRefusedByTheStateThatItIs) {
  proto::Run peer = run();
  state(peer, files_of(peer, {1, 2, 4}, DType::kBf16), {1, 2, 3}, kBefore);
  EXPECT_THAT(refusal(peer), AllOf(HasSubstr("features.from: "),
                                   HasSubstr(".safetensors: slot 2 is stated to be "
                                             "state 3 (features.from_capture), but "
                                             "is state 4 before the final norm"),
                                   HasSubstr(" off, relative to its size"),
                                   HasSubstr("is features.from_capture off by one?")));
  peer = run();
  state(peer, files_of(peer, {1, 3, 2}, DType::kF32), {1, 2, 3}, kBefore);
  EXPECT_THAT(refusal(peer), HasSubstr("slot 1 is stated to be state 2 (features.from_capture), "
                                       "but is state 3: "));
}

TEST_F(OfflineCheck, IdsThatCountTheEmbeddingOtherwiseAreRefused) {
  proto::Run peer = run(true);
  state(peer, files_of(peer, {0, 1, 2}, DType::kBf16), {1, 2, 3}, proto::Features::NONE);
  EXPECT_THAT(refusal(peer), AllOf(HasSubstr("slot 0 is stated to be state 1"),
                                   HasSubstr("but is state 0: "), HasSubstr("off by one?")));
}

TEST_F(OfflineCheck, SlotsThatTheRunDoesNotReadMayBeAnything) {
  proto::Run peer = run(true);
  state(peer, files_of(peer, {1, 2, 3, 4}, DType::kF32), {1, 2, 3, 0}, proto::Features::NONE);
  RecordingObserver observer;
  EXPECT_TRUE(train_tiny(peer, observer).ok());
  EXPECT_TRUE(observer.heard("3 slots of files"));
}

TEST_F(OfflineCheck, TheLastStateBeforeTheNormIsNotTakenForNormed) {
  proto::Run peer = run();
  state(peer, files_of(peer, {1, 2, 3}, DType::kF32), {1, 2, 3}, kAfter);
  EXPECT_THAT(refusal(peer), HasSubstr("slot 3 is stated to be state 4 after the final norm "
                                       "(features.from_last), but is state 4 before the final "
                                       "norm: "));
  EXPECT_THAT(refusal(peer), HasSubstr("say features.from_last: before_norm"));
}

TEST_F(OfflineCheck, TheNormedLastStateIsNotTakenForTheStream) {
  proto::Run peer = run();
  const std::string files = files_of(peer, {1, 2, 3}, DType::kBf16, after_norm(norm()));
  state(peer, files, {1, 2, 3}, kBefore);
  EXPECT_THAT(refusal(peer), AllOf(HasSubstr("slot 3 is stated to be state 4 before the final norm "
                                             "(features.from_last), but is state 4 after the final "
                                             "norm: "),
                                   HasSubstr("say features.from_last: after_norm")));
  // transformers' last hidden state, taken for the last layer's output.
  peer = run();
  state(peer, files, {1, 2, 3, 4}, proto::Features::NONE);
  EXPECT_THAT(refusal(peer), AllOf(HasSubstr("(features.from_capture), but is state 4 after"),
                                   HasSubstr("say features.from_last: after_norm")));
}

TEST_F(OfflineCheck, AnotherModelsFeaturesMatchNoState) {
  proto::Run peer = run();
  const std::string target = peer.target().path();
  make_toy_model(8).write(target);
  const std::string files = files_of(peer, {1, 2, 3}, DType::kBf16);
  make_toy_model(7).write(target);
  state(peer, files, {1, 2, 3}, kBefore);
  EXPECT_THAT(refusal(peer), AllOf(HasSubstr("slot 0 is stated to be state 1"),
                                   HasSubstr("but matches no state of the target"),
                                   HasSubstr("of another model?"), Not(HasSubstr("but is"))));
}

TEST_F(OfflineCheck, RowsOfOtherTokensMatchNoState) {
  proto::Run peer = run();
  const auto shift = [](PeerStates& states) {
    const int64_t row = states.slots * states.hidden;
    std::rotate(states.values.begin(), states.values.begin() + row, states.values.end());
  };
  state(peer, files_of(peer, {1, 2, 3}, DType::kF32, shift), {1, 2, 3}, kBefore);
  EXPECT_THAT(refusal(peer), HasSubstr("but matches no state of the target"));
}

TEST_F(OfflineCheck, EachDirectoryIsLookedInto) {
  proto::Run peer = run();
  const std::string right = files_of(peer, {1, 2, 3}, DType::kF32);
  const std::string wrong = files_of(peer, {1, 4, 3}, DType::kF32);
  for (uint64_t sample = 0; sample < 12; ++sample) {
    EXPECT_TRUE(system_files().remove_all(join_path(right, sample_file_name(sample))).ok());
  }
  state(peer, right, {1, 2, 3}, kBefore);
  state(peer, wrong, {1, 2, 3}, kBefore);
  EXPECT_THAT(refusal(peer),
              AllOf(HasSubstr(wrong + "/"), HasSubstr("slot 1"), HasSubstr("but is state 4 ")));
}

}  // namespace
}  // namespace percheron
