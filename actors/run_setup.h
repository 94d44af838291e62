#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/placement_plan.h"
#include "actors/policy/assignment.h"
#include "actors/policy/step_plan.h"
#include "base/file_system.h"
#include "base/status.h"
#include "data/epoch_plan.h"
#include "data/features.h"
#include "data/token_shard.h"
#include "data/vocabulary_map.h"
#include "kernels/device.h"
#include "model/config.h"
#include "model/drafter.h"
#include "model/generation.h"
#include "model/optimizer.h"
#include "model/schedule.h"
#include "model/weight_format.h"
#include "proto/run.pb.h"

namespace percheron {

/// Every epoch is planned before the first step, so a run's length has limits.
inline constexpr int64_t kEpochsMax = 10'000;
inline constexpr int64_t kMicroBatchesMax = 100'000'000;  // of all epochs
inline constexpr int64_t kStepMicroBatchesMax = 1 << 20;
inline constexpr int64_t kCompareTokensMax = 1 << 16;  // their states are held twice

/// The rows that a run learns from and is measured on.
struct RunData {
  std::shared_ptr<const TokenDataset> train;
  std::shared_ptr<const TokenDataset> held_out;  // null without held-out data
  PlanOptions options;
  SampleSelection selection;
  PlanOptions held_out_options;
  SampleSelection held_out_selection;  // at most evaluate.conversations_max samples
  int64_t held_out_left_out = 0;       // for which evaluate.feature_bytes_max has no room
  int64_t held_out_in_training = 0;    // held-out samples whose tokens are also trained on
  std::string tokenizer_note;          // why the tokenizer was not compared; empty if it was
  std::string template_note;           // why the chat template was not compared; likewise
};

/// A run's configuration, checked against its target, data and devices, every default filled in.
/// Immutable once made.
struct RunSetup {
  proto::Run config;  // as it was given
  ModelConfig target;
  DrafterConfig drafter;
  LossConfig loss;
  OptimizerConfig optimizer;
  Schedule schedule;
  DType target_dtype = DType::kBf16;
  WeightFormat target_weights = WeightFormat::kFull;
  DType drafter_dtype = DType::kBf16;
  PlacementPlan placement;
  Assignment assignment = Assignment::kStealing;
  RunData data;
  std::vector<int32_t> draft_ids;     // ascending target ids; empty = the whole vocabulary
  double draft_coverage = 1;          // of the supervised training tokens
  std::string draft_vocabulary_data;  // content hash of the data that it was counted on, if known
  std::string draft_vocabulary_note;  // that this is not data.train; empty otherwise
  double held_out_coverage = 1;       // of the supervised held-out tokens
  std::string draft_vocabulary_hash;  // empty = whole
  FeatureShape features;
  StepPlan steps{1, {1}, 0};
  uint64_t step_bytes_max = 0;         // features of the largest step
  int64_t tokens_max = 0;              // of the largest micro-batch, held-out ones included
  MicroBatchId largest_micro_batch;    // the first with most tokens, of all epochs
  std::vector<int64_t> draft_lengths;  // ascending; measured in evaluations

  const std::string& output() const { return config.output().directory(); }
};

/// Reads the target's configuration and the data, and settles everything that needs no weights.
/// Errors name the key, its value and what to do: a missing or contradictory setting, samples
/// longer than the budget (by data.too_long), data prepared with another tokenizer than the
/// target's, no supervised token, a capture layer, draft vocabulary or sliding layer out of range,
/// a features.bytes_max below one step, a device that can't exist.
Result<std::shared_ptr<const RunSetup>> resolve_run(const proto::Run& run, FileSystem& files);

}  // namespace percheron
