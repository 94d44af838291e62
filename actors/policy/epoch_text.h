#pragma once

#include <string>

#include "actors/policy/step_plan.h"

namespace percheron {

/// What people are told when all steps of `epoch` that the plan reaches are done: train.steps may
/// have cut it off.
std::string epoch_end_text(const StepPlan& plan, int64_t epoch);

}  // namespace percheron
