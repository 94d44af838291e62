#pragma once

#include "actors/run_plan.h"
#include "base/file_system.h"
#include "base/status.h"

namespace percheron {

/// Fills in the plan's parameters, files of features and bytes of each device, by running the
/// models' own code on devices that only count: the target, rank by rank where several devices hold
/// it, over the largest micro-batches, and one trainer over a step and an evaluation. The plan's
/// setup and devices are given.
Status count_memory(FileSystem& files, RunPlan& plan);

}  // namespace percheron
