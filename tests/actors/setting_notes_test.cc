#include "actors/setting_notes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/actors/tiny_run.h"

namespace percheron {
namespace {

std::vector<std::string> notes_of(const proto::Run& run) {
  const auto setup = resolve_run(run, system_files());
  EXPECT_TRUE(setup.ok()) << setup.status().message();
  return setup.ok() ? setting_notes(**setup) : std::vector<std::string>();
}

bool names(const std::vector<std::string>& notes, const std::string& part) {
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

TEST(SettingNotes, SayNothingOfSettingsThatAreUsed) {
  EXPECT_EQ(notes_of(make_tiny_run("used", {.held_out = 4})), std::vector<std::string>());
  EXPECT_EQ(notes_of(make_tiny_run("used_dflash", {.held_out = 4, .dflash = true})),
            std::vector<std::string>());
}

TEST(SettingNotes, NameWhatTheOtherKindOfDrafterReads) {
  proto::Run run = make_tiny_run("eagle3", {.held_out = 4});
  run.mutable_drafter()->set_block_size(8);
  run.mutable_loss()->set_gamma(4);
  EXPECT_TRUE(names(notes_of(run), "drafter.block_size is not used"));
  EXPECT_TRUE(names(notes_of(run), "loss.gamma is not used"));

  run = make_tiny_run("dflash", {.held_out = 4, .dflash = true});
  run.mutable_loss()->set_ttt_steps(3);
  run.mutable_loss()->set_position_weight(proto::Loss::DPACE);
  run.mutable_loss()->set_gamma(4);
  run.mutable_drafter()->set_norm_output(true);
  EXPECT_TRUE(names(notes_of(run), "loss.ttt_steps is not used"));
  EXPECT_TRUE(names(notes_of(run), "loss.gamma is not used: loss.position_weight"));
  EXPECT_TRUE(names(notes_of(run), "drafter.norm_output is not used"));
}

TEST(SettingNotes, NameAttentionWhereNoTargetHasTwoKernels) {
  proto::Run run = make_tiny_run("attention", {.held_out = 4});
  run.mutable_target()->set_attention(proto::Target::CUDNN);
  EXPECT_TRUE(names(notes_of(run), "target.attention is not used: no target is placed on a CUDA"));
  run.mutable_placement()->add_targets("cuda:0");
  EXPECT_FALSE(names(notes_of(run), "target.attention"));
}

TEST(SettingNotes, SayThatAnAssignmentIsThereForComparison) {
  proto::Run run = make_tiny_run("assignment");
  run.mutable_mailbox()->set_assignment(proto::Mailbox::ROUND_ROBIN);
  EXPECT_FALSE(names(notes_of(run), "mailbox.assignment")) << "one trainer";
  place(run, 1, 2);
  EXPECT_TRUE(names(notes_of(run), "mailbox.assignment"));
  run.mutable_mailbox()->set_assignment(proto::Mailbox::FIXED);
  EXPECT_FALSE(names(notes_of(run), "mailbox.assignment")) << "it has its use";
}

TEST(SettingNotes, NameTheComparisonWhereThereIsNothingToCompare) {
  proto::Run run = make_tiny_run("weights", {.held_out = 4});
  run.mutable_target()->set_compare_tokens(64);
  EXPECT_TRUE(names(notes_of(run), "target.compare_tokens is not used: target.weights is full"));
  run.mutable_target()->set_weights(proto::Target::INT8);
  EXPECT_FALSE(names(notes_of(run), "target.compare_tokens"));
}

TEST(SettingNotes, NameWhatTheOptimizerTheScheduleAndTheDataLeaveUnread) {
  proto::Run run = make_tiny_run("rest", {.epochs = 1});
  run.mutable_optimizer()->set_muon_momentum(0.9);
  run.mutable_schedule()->set_warmup_steps(1);
  run.mutable_schedule()->set_warmup_ratio(0.1);
  run.mutable_schedule()->set_kind(proto::Schedule::LINEAR);
  run.mutable_schedule()->set_decay_ratio(0.1);
  run.mutable_features()->set_cache_memory_bytes_max(1 << 20);
  run.mutable_evaluate()->set_every_steps(2);
  const std::vector<std::string> notes = notes_of(run);
  for (const char* key :
       {"optimizer.muon_momentum", "schedule.warmup_ratio", "schedule.decay_ratio",
        "features.cache_memory_bytes_max", "evaluate.every_steps"}) {
    EXPECT_TRUE(names(notes, std::string(key) + " is not used")) << key;
  }
}

TEST(SettingNotes, NameWhatTheEndOfTheRunForestalls) {
  proto::Run run = make_tiny_run("end", {.held_out = 4, .epochs = 2});
  run.mutable_train()->set_steps(3);
  run.mutable_evaluate()->add_at_steps(2);
  run.mutable_evaluate()->add_at_steps(900);
  const std::vector<std::string> notes = notes_of(run);
  EXPECT_TRUE(names(notes, "train.epochs 2 and train.steps 3 are both given"));
  EXPECT_TRUE(names(notes, "evaluate.at_steps 900 is not reached: the run ends at step 3"));
  EXPECT_FALSE(names(notes, "at_steps 2 "));
}

TEST(SettingNotes, ARunTellsThem) {
  proto::Run run = make_tiny_run("told", {.epochs = 1});
  run.mutable_loss()->set_dpace_alpha(0.25);
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_TRUE(observer.heard("loss.dpace_alpha is not used"));
}

}  // namespace
}  // namespace percheron
