#include "actors/run_setup.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "actors/run_plan.h"
#include "base/file_system.h"
#include "tests/actors/tiny_run.h"
#include "tests/data/shards.h"

namespace percheron {
namespace {

struct Refusal {
  const char* name;
  std::function<void(proto::Run&)> change;
  std::vector<const char*> parts;  // of the message
  bool dflash = false;
};

// A held-out shard of a larger tokenizer once ended the program as a bug.
TEST(RunSetup, RefusesHeldOutDataOfAnotherVocabulary) {
  proto::Run run = make_tiny_run("other_vocabulary", {.held_out = 2});
  ShardParts parts(rows_of_lengths({8, 9}));
  parts.passport.vocab_size = 1000;
  ASSERT_TRUE(parts.write(system_files(), run.data().held_out(0)).ok());
  const auto setup = resolve_run(run, system_files());
  ASSERT_FALSE(setup.ok());
  EXPECT_NE(setup.status().message().find("1000 tokens"), std::string::npos)
      << setup.status().message();
}

/// Ends, steps and amounts of which one is missing or beyond its limits.
std::vector<Refusal> refused_amounts() {
  return {
      {"no target", [](auto& run) { run.mutable_target()->clear_path(); }, {"target.path"}},
      {"no data", [](auto& run) { run.mutable_data()->clear_train(); }, {"data.train"}},
      {"no output", [](auto& run) { run.clear_output(); }, {"output.directory"}},
      {"no end", [](auto& run) { run.clear_train(); }, {"train.epochs", "train.steps"}},
      {"step of nothing",
       [](auto& run) { run.mutable_train()->set_micro_batches_per_step(0); },
       {"train.micro_batches_per_step", "0"}},
      {"step of too much",
       [](auto& run) {
         run.mutable_train()->set_micro_batches_per_step(std::numeric_limits<int64_t>::max());
       },
       {"train.micro_batches_per_step", "at most"}},
      {"endless epochs",
       [](auto& run) { run.mutable_train()->set_epochs(1000000000); },
       {"train.epochs", "1000000000", "at most"}},
      {"endless steps",
       [](auto& run) { run.mutable_train()->set_steps(1000000000); },
       {"train.steps", "1000000000", "at most"}},
      {"steps of endless epochs",
       [](auto& run) {
         run.mutable_train()->clear_epochs();
         run.mutable_train()->set_steps(100000000);
       },
       {"train.steps", "10000 epochs"}},
      {"fewer tokens than none",
       [](auto& run) { run.mutable_target()->set_compare_tokens(-1); },
       {"target.compare_tokens is -1", "at least 0"}},
      {"more tokens than are held twice",
       [](auto& run) { run.mutable_target()->set_compare_tokens(1 << 20); },
       {"target.compare_tokens is 1048576", "at most 65536"}},
      {"fewer conversations than none",
       [](auto& run) { run.mutable_evaluate()->set_decode_conversations(-1); },
       {"evaluate.decode_conversations", "-1"}},
      {"answers of nothing",
       [](auto& run) { run.mutable_evaluate()->set_new_tokens_max(0); },
       {"evaluate.new_tokens_max", "0"}},
  };
}

/// Numbers of the drafter and its loss, whichever kind reads them.
std::vector<Refusal> refused_numbers() {
  return {
      {"negative vocabulary",
       [](auto& run) { run.mutable_drafter()->set_draft_vocab_size(-3); },
       {"drafter.draft_vocab_size is -3", "from 1 to"}},
      {"no layers",
       [](auto& run) { run.mutable_drafter()->set_layers(0); },
       {"drafter.layers is 0", "from 1 to 1024"}},
      {"no block",
       [](auto& run) { run.mutable_drafter()->set_block_size(0); },
       {"drafter.block_size is 0", "from 2 to 1024"}},
      {"negative mask token",
       [](auto& run) { run.mutable_drafter()->set_mask_token_id(-1); },
       {"drafter.mask_token_id is -1", "from 0 to"},
       true},
      {"negative window",
       [](auto& run) { run.mutable_drafter()->set_sliding_window(-4); },
       {"drafter.sliding_window is -4", "from 0 to"},
       true},
      {"negative gamma",
       [](auto& run) { run.mutable_loss()->set_gamma(-5); },
       {"loss.gamma is -5", "from 0.001 to"}},
      {"no anchors",
       [](auto& run) { run.mutable_loss()->set_anchors_max(0); },
       {"loss.anchors_max is 0", "from 1 to"}},
      {"no steps",
       [](auto& run) { run.mutable_loss()->set_ttt_steps(0); },
       {"loss.ttt_steps is 0", "from 1 to 64"},
       true},
  };
}

/// Settings that disagree with the target, the data or the memory.
std::vector<Refusal> refused_settings() {
  return {
      {"long sample",
       [](auto& run) { run.mutable_data()->set_token_budget(20); },
       {"data.token_budget", "20"}},
      {"capture out of range",
       [](auto& run) { run.mutable_drafter()->set_capture(2, 5); },
       {"5", "4 layers"}},
      {"draft vocabulary too large",
       [](auto& run) { run.mutable_drafter()->set_draft_vocab_size(98); },
       {"98", "97"}},
      {"unused rows drafted",  // vllm#55133
       [](auto& run) { run.mutable_drafter()->set_draft_vocab_size(96); },
       {"drafter.draft_vocab_size", "96", "94"}},
      {"sliding layer out of range",
       [](auto& run) {
         run.mutable_drafter()->add_sliding_layers(7);
         run.mutable_drafter()->set_sliding_window(4);
       },
       {"drafter.sliding_layers", "7"},
       true},
      {"labels for EAGLE-3",
       [](auto& run) { run.mutable_loss()->set_kind(proto::Loss::DATA_LABELS); },
       {"loss.kind", "data_labels"}},
      {"warm-up longer than the run",
       [](auto& run) { run.mutable_schedule()->set_warmup_steps(1000000); },
       {"schedule.warmup_steps", "1000000"}},
      {"rate",
       [](auto& run) { run.mutable_optimizer()->set_learning_rate(-1); },
       {"learning_rate", "-1"}},
      {"bad device",
       [](auto& run) { run.mutable_placement()->set_targets(0, "gpu:0"); },
       {"placement.targets", "gpu"}},
      {"draft length",
       [](auto& run) { run.mutable_evaluate()->add_draft_lengths(9); },
       {"evaluate.draft_lengths", "9"},
       true},
      {"buckets of no bucketed order",
       [](auto& run) { run.mutable_data()->set_buckets(4); },
       {"data.buckets is 4", "data.order is packed"}},
      {"too many buckets",
       [](auto& run) {
         run.mutable_data()->set_order(proto::Data::BUCKETED);
         run.mutable_data()->set_buckets(65);
       },
       {"data.buckets is 65", "from 1 to 64"}},
      {"batches of samples of a packed order",
       [](auto& run) { run.mutable_data()->set_batch_samples_max(4); },
       {"data.batch_samples_max is 4", "data.order is packed"}},
      {"batches of no sample",
       [](auto& run) {
         run.mutable_data()->set_order(proto::Data::SORTED);
         run.mutable_data()->set_batch_samples_max(0);
       },
       {"data.batch_samples_max is 0", "from 1 to 65536"}},
      {"cache of what is padded anew",
       [](auto& run) {
         run.mutable_data()->set_order(proto::Data::SHUFFLED);
         run.mutable_features()->set_cache_memory_bytes_max(1 << 20);
       },
       {"features.cache_", "data.order shuffled"}},
      {"small store",  // SpecForge 42fb4571
       [](auto& run) { run.mutable_features()->set_bytes_max(1000); },
       {"features.bytes_max", "1000"}},
  };
}

std::vector<Refusal> refused_groups() {
  return {
      {"no rank",
       [](auto& run) { run.mutable_placement()->set_tensor_parallel(0); },
       {"placement.tensor_parallel is 0", "at least 1"}},
      {"devices that are no groups",
       [](auto& run) {
         place(run, 3, 1);
         run.mutable_placement()->set_tensor_parallel(2);
       },
       {"placement.tensor_parallel is 2", "placement.targets names 3 devices"}},
      {"ranks of several kinds",
       [](auto& run) {
         place(run, 2, 1);
         run.mutable_placement()->set_targets(1, "emulated:0");
         run.mutable_placement()->set_tensor_parallel(2);
       },
       {"cpu:0 and emulated:0", "one kind"}},
      {"a device in two groups",
       [](auto& run) {
         place(run, 4, 1);
         run.mutable_placement()->set_targets(3, "cpu:0");
         run.mutable_placement()->set_tensor_parallel(2);
       },
       {"placement.targets names cpu:0 twice"}},
      {"heads that don't divide",
       [](auto& run) {
         place(run, 3, 1);
         run.mutable_placement()->set_tensor_parallel(3);
       },
       {"placement.tensor_parallel is 3", "num_attention_heads of 4"}},
  };
}

void expect_refused(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.name);
    proto::Run run = make_tiny_run("refused", {.held_out = 2, .dflash = refusal.dflash});
    refusal.change(run);
    const auto setup = resolve_run(run, system_files());
    ASSERT_FALSE(setup.ok());
    for (const char* part : refusal.parts) {
      EXPECT_NE(setup.status().message().find(part), std::string::npos) << setup.status().message();
    }
  }
}

TEST(RunSetup, RefusesAmountsNamingKeyValueAndWhatToDo) { expect_refused(refused_amounts()); }
TEST(RunSetup, RefusesNumbersNamingKeyValueAndRange) { expect_refused(refused_numbers()); }
TEST(RunSetup, RefusesSettingsNamingKeyValueAndWhatToDo) { expect_refused(refused_settings()); }
TEST(RunSetup, RefusesGroupsOfDevicesThatCannotHoldATarget) { expect_refused(refused_groups()); }

TEST(RunSetup, DeviceThatDoesNotExistIsRefusedBeforeAnythingIsLoaded) {
  proto::Run run = make_tiny_run("no_gpu");
  run.mutable_placement()->set_trainers(0, "cuda:97");
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  ASSERT_FALSE(summary.ok());
  EXPECT_NE(summary.status().message().find("cuda:97"), std::string::npos)
      << summary.status().message();
}

TEST(RunSetup, FillsInTheDefaultsOfTheKind) {
  proto::Run run = make_tiny_run("defaults", {.dflash = true});
  run.mutable_optimizer()->clear_learning_rate();
  const auto dflash = resolve_run(run, system_files());
  ASSERT_TRUE(dflash.ok()) << dflash.status().message();
  EXPECT_TRUE((*dflash)->loss.hard_labels);
  EXPECT_EQ((*dflash)->loss.denominator, Denominator::kWeights);
  EXPECT_DOUBLE_EQ((*dflash)->optimizer.learning_rate, 6e-4);
  EXPECT_FALSE((*dflash)->features.has_last);
  EXPECT_EQ((*dflash)->draft_lengths, std::vector<int64_t>{3});
  EXPECT_TRUE((*dflash)->draft_ids.empty());
  EXPECT_EQ((*dflash)->drafter.mask_token_id, 94) << "the first row that no text uses";

  run = make_tiny_run("defaults_eagle3");
  run.mutable_optimizer()->clear_learning_rate();
  const auto eagle3 = resolve_run(run, system_files());
  ASSERT_TRUE(eagle3.ok()) << eagle3.status().message();
  EXPECT_FALSE((*eagle3)->loss.hard_labels);
  EXPECT_DOUBLE_EQ((*eagle3)->optimizer.learning_rate, 1e-4);
  EXPECT_TRUE((*eagle3)->features.has_last && (*eagle3)->features.has_top1);
  EXPECT_EQ((*eagle3)->draft_ids.size(), 48u);
}

TEST(RunSetup, ResolvesTheOrderAndKeepsHeldOutDataPacked) {
  proto::Run run = make_tiny_run("ordered", {.samples = 40, .held_out = 4});
  run.mutable_data()->set_order(proto::Data::BUCKETED);
  run.mutable_data()->set_buckets(3);
  run.mutable_data()->set_batch_samples_max(5);
  const auto setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  const RunData& data = (*setup)->data;
  EXPECT_EQ(data.options.order, EpochOrder::kBucketed);
  EXPECT_EQ(data.options.batch_samples_max, 5);
  EXPECT_FALSE(data.options.bucket_bounds.empty());
  EXPECT_LE(data.options.bucket_bounds.size(), 3u);
  EXPECT_EQ(data.held_out_options.order, EpochOrder::kPacked);
  const Result<RunPlan> plan = plan_run(**setup, system_files());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_LT(plan->efficiency, 1);
  EXPECT_NE(plan->text().find("order       bucketed"), std::string::npos) << plan->text();
}

// Soup#680.
TEST(RunSetup, HeldOutSamplesThatAreTrainedOnAreCounted) {
  proto::Run run = make_tiny_run("overlap", {.samples = 9, .held_out = 3});
  run.mutable_data()->add_held_out(run.data().train(0));
  const auto setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  EXPECT_EQ((*setup)->data.held_out_in_training, 9);
}

TEST(RunSetup, HeldOutFeaturesNeverExceedTheirOwnLimit) {
  proto::Run run = make_tiny_run("many_held_out", {.held_out = 60});
  auto setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  EXPECT_EQ((*setup)->data.held_out_left_out, 0);
  const uint64_t bytes_max = (*setup)->step_bytes_max;
  run.mutable_evaluate()->set_feature_bytes_max(bytes_max);
  setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  const SampleSelection& chosen = (*setup)->data.held_out_selection;
  EXPECT_GT((*setup)->data.held_out_left_out, 0);
  EXPECT_LE((*setup)->features.bytes(chosen.tokens, 0), bytes_max);
  const Result<RunPlan> plan = plan_run(**setup, system_files());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_LE(plan->held_out_bytes, bytes_max);
  EXPECT_NE(plan->text().find("held-out samples are left out: evaluate.feature_bytes_max"),
            std::string::npos)
      << plan->text();
  // The store's limit is another thing.
  run.mutable_evaluate()->clear_feature_bytes_max();
  run.mutable_features()->set_bytes_max(bytes_max);
  setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  EXPECT_EQ((*setup)->data.held_out_left_out, 0);

  run.mutable_evaluate()->set_feature_bytes_max(100);
  setup = resolve_run(run, system_files());
  ASSERT_FALSE(setup.ok());
  EXPECT_NE(setup.status().message().find("evaluate.feature_bytes_max is 100"), std::string::npos)
      << setup.status().message();
}

// What a drafter's file says was once taken whatever the configuration said beside it.
TEST(RunSetup, FileThatSettlesTheDrafterIsContradictedByNobody) {
  proto::Run run = make_tiny_run("first_drafter", {.epochs = 1});
  RecordingObserver observer;
  ASSERT_TRUE(train_tiny(run, observer).ok());
  const std::string drafter = join_path(run.output().directory(), "latest");
  for (const bool weights : {true, false}) {
    SCOPED_TRACE(weights ? "init_from" : "config");
    proto::Run next = run;
    if (weights) {
      next.mutable_drafter()->set_init_from(drafter);
    } else {
      next.mutable_drafter()->set_config(join_path(drafter, "config.json"));
    }
    auto setup = resolve_run(next, system_files());
    ASSERT_TRUE(setup.ok()) << "the same values: " << setup.status().message();
    EXPECT_FALSE((*setup)->drafter.freeze_head);
    next.mutable_drafter()->set_freeze_head(true);
    setup = resolve_run(next, system_files());
    ASSERT_TRUE(setup.ok()) << setup.status().message();
    EXPECT_TRUE((*setup)->drafter.freeze_head);
    const std::vector<Refusal> refusals = {
        {"capture", [](auto& r) { r.mutable_drafter()->set_capture(0, 0); }, {"drafter.capture"}},
        {"layers", [](auto& r) { r.mutable_drafter()->set_layers(2); }, {"drafter.layers"}},
        {"vocabulary",
         [](auto& r) { r.mutable_drafter()->set_draft_vocab_size(32); },
         {"drafter.draft_vocab_size"}},
        {"norm",
         [](auto& r) { r.mutable_drafter()->set_norm_output(true); },
         {"drafter.norm_output"}},
        {"block", [](auto& r) { r.mutable_drafter()->set_block_size(7); }, {"drafter.block_size"}},
    };
    for (const Refusal& refusal : refusals) {
      SCOPED_TRACE(refusal.name);
      proto::Run changed = next;
      refusal.change(changed);
      const auto refused = resolve_run(changed, system_files());
      ASSERT_FALSE(refused.ok());
      EXPECT_NE(refused.status().message().find(refusal.parts[0]), std::string::npos)
          << refused.status().message();
    }
  }
}

// speculators#903, #1081: a draft vocabulary counted on other data was used without a word.
TEST(RunSetup, DraftVocabularyIsCountedAnewForOtherDataAndATakenOneSaysSo) {
  const auto hash_and_note = [](const proto::Run& run) {
    const auto setup = resolve_run(run, system_files());
    EXPECT_TRUE(setup.ok()) << setup.status().message();
    return setup.ok() ? std::pair((*setup)->draft_vocabulary_hash, (*setup)->draft_vocabulary_note)
                      : std::pair(std::string(), std::string());
  };
  proto::Run run = make_tiny_run("counted", {.epochs = 1});
  RecordingObserver observer;
  ASSERT_TRUE(train_tiny(run, observer).ok());
  proto::Run warm = run;
  warm.mutable_drafter()->set_init_from(join_path(run.output().directory(), "latest"));
  const auto [first, unsaid] = hash_and_note(run);
  EXPECT_EQ(hash_and_note(warm), std::pair(first, std::string()));
  EXPECT_EQ(unsaid, "");

  // Ids that the first data did not have.
  ShardParts parts(rows_of_lengths({40, 41}));
  parts.passport.vocab_size = 94;
  for (uint32_t& token : parts.tokens) token = 93 - token % 40;
  ASSERT_TRUE(parts.write(system_files(), run.data().train(0)).ok());
  const auto [second, still_unsaid] = hash_and_note(run);
  EXPECT_NE(second, first);
  EXPECT_EQ(still_unsaid, "");
  const auto [taken, said] = hash_and_note(warm);
  EXPECT_EQ(taken, first);
  EXPECT_NE(said.find("was counted on other data"), std::string::npos) << said;
}

}  // namespace
}  // namespace percheron
