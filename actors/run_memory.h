#pragma once

#include <memory>

#include "actors/run_plan.h"
#include "base/file_system.h"
#include "base/status.h"
#include "model/target_files.h"

namespace percheron {

/// Fills in the plan's parameters, files of features and bytes of each device, by running the
/// models' own code on devices that only count: the target, rank by rank where several devices hold
/// it, over the largest micro-batches, and one trainer over a step and an evaluation. A GPU's and
/// an emulated device's operations are counted with the scratch that they take themselves. The
/// plan's setup and devices are given; `target` is theirs.
Status count_memory(FileSystem& files, RunPlan& plan, std::shared_ptr<const TargetFiles> target);

/// The scratch memory to reserve where `counted` bytes are planned: a sixteenth more, for
/// micro-batches with fewer tokens than the largest and yet more rows to train.
uint64_t scratch_to_reserve(uint64_t counted);

}  // namespace percheron
