#pragma once

#include <string>
#include <utility>
#include <vector>

#include "actors/observer.h"

namespace percheron {

/// The numbers of a report under the names that metrics.jsonl and TensorBoard show: "train/loss",
/// "train/accuracy_0", "perf/wait_share", "eval/acceptance_length_walk_3", ...
using Scalars = std::vector<std::pair<std::string, double>>;

Scalars step_scalars(const StepReport& report);
Scalars evaluation_scalars(const EvaluationReport& report);

}  // namespace percheron
