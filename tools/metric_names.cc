#include "tools/metric_names.h"

#include <fmt/format.h>

namespace percheron {

Scalars step_scalars(const StepReport& report) {
  Scalars scalars{
      {"train/loss", report.loss},
      {"train/simulated_acceptance_length", report.simulated_acceptance_length},
      {"train/learning_rate", report.learning_rate},
      {"train/gradient_norm", report.gradient_norm},
      {"train/tokens", static_cast<double>(report.tokens)},
      {"train/supervised_tokens", static_cast<double>(report.supervised)},
      {"perf/step_seconds", report.step_seconds},
      {"perf/tokens_per_second", report.tokens_per_second},
      {"perf/target_tokens_per_second", report.target_tokens_per_second},
      {"perf/trainer_tokens_per_second", report.trainer_tokens_per_second},
      {"perf/wait_share", report.wait_share},
      {"perf/pool_bytes", static_cast<double>(report.pool_bytes)},
      {"perf/cached_bytes", static_cast<double>(report.cached_bytes)},
      {"perf/steals_total", static_cast<double>(report.steals_total)},
  };
  for (size_t i = 0; i < report.position_accuracy.size(); ++i) {
    scalars.emplace_back(fmt::format("train/accuracy_{}", i), report.position_accuracy[i]);
  }
  for (size_t i = 0; i < report.position_loss.size(); ++i) {
    scalars.emplace_back(fmt::format("train/loss_{}", i), report.position_loss[i]);
  }
  return scalars;
}

Scalars evaluation_scalars(const EvaluationReport& report) {
  Scalars scalars;
  for (size_t i = 0; i < report.draft_lengths.size(); ++i) {
    scalars.emplace_back(fmt::format("eval/acceptance_length_walk_{}", report.draft_lengths[i]),
                         report.acceptance_length_walk[i]);
  }
  scalars.emplace_back("eval/seconds", report.seconds);
  return scalars;
}

}  // namespace percheron
