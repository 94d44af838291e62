#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/run_setup.h"
#include "base/status.h"
#include "data/feature_file.h"
#include "data/features.h"
#include "data/fingerprint.h"

namespace percheron {

enum class CaptureLayout {
  kSamples,  // hs_N.safetensors, one sample each, as vLLM and speculators write them
  kShards,   // features-NNNNN.safetensors, many samples each
};
/// Whether the target's last state is captured: where the run's loss reads it, or always.
enum class CaptureLast { kWhereRead, kAlways };
/// What becomes of more features than the budget: refused, or the first samples that fit.
enum class OverBudget { kRefuse, kCaptureWhatFits };

struct CaptureOptions {
  std::string directory;
  CaptureLayout layout = CaptureLayout::kSamples;
  CaptureLast last = CaptureLast::kWhereRead;
  uint64_t shard_bytes = uint64_t{256} << 20;  // of a shard, about; as much host memory a device
  uint64_t bytes_max = 0;                      // of all files; 0 = what the disk has
  OverBudget over_budget = OverBudget::kRefuse;
};

/// Samples that are captured and written together: positions [begin, end) in the selection.
struct CaptureUnit {
  size_t begin = 0, end = 0;
};

/// What a capture will write; a pure function of the run's setup and the options.
struct CapturePlan {
  FeatureShape shape;
  FeatureOrigin origin;            // with a stand-in for the target's hash
  std::vector<CaptureUnit> units;  // in the order of the samples; a shard each, where there are
  int64_t samples = 0, tokens = 0;
  uint64_t bytes = 0;        // of all files, at most
  int64_t left_out = 0;      // samples that don't fit into the budget
  uint64_t bytes_whole = 0;  // with them

  /// For people; several lines.
  std::string text(const CaptureOptions& options) const;
};

/// kResourceExhausted when the features are more than options.bytes_max and this is to be refused,
/// or when not even the first unit fits; kInvalidArgument for a shard of no bytes.
Result<CapturePlan> plan_capture(const RunSetup& setup, const CaptureOptions& options);

/// What decides a capture directory's files: feature_fingerprint() and the layout. A capture goes
/// on only where it is the same.
Fingerprint capture_settings(const RunSetup& setup, const CaptureOptions& options,
                             const std::string& target_hash);

}  // namespace percheron
