#pragma once

#include <optional>
#include <string>

#include "actors/device_worker.h"
#include "actors/run_setup.h"
#include "base/clock.h"
#include "model/target.h"

namespace percheron {

/// The rows on which weights of 8 bits are compared with full ones: the first target.compare_tokens
/// tokens that the run measures itself on, else that it trains on, in their conversations.
PackedSequences comparison_rows(const RunSetup& setup);

/// What weights of 8 bits cost in agreement, and what is said of it.
struct WeightsReport {
  std::optional<WeightsComparison> comparison;  // none with target.compare_tokens: 0
  std::string text;
};

/// Compares on `worker`, rank 0's, whose target's layers are loaded; nothing with full weights.
/// Errors as Target::compare_weights().
Result<std::optional<WeightsReport>> compare_target_weights(const RunSetup& setup,
                                                            DeviceWorker& worker, Target& target,
                                                            const Clock& clock);

}  // namespace percheron
