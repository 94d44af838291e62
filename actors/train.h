#pragma once

#include "actors/observer.h"
#include "actors/run_parts.h"
#include "base/status.h"
#include "proto/run.pb.h"

namespace percheron {

/// Runs `run` in this process from its configuration to its last checkpoint: opens devices, loads
/// the target, goes on from the output directory's checkpoint if there is one, and trains.
/// The first of environment.stop_signals ends it after the current step with a checkpoint (an ok
/// summary with stopped_early), the second at once (kCancelled). Any other error leaves the
/// checkpoints that were written before.
Result<RunSummary> train(const proto::Run& run, const RunEnvironment& environment);

/// As run_actors() wants them: devices, target, trainers, checkpoint to go on from. Tests replace
/// parts of the result.
Result<std::unique_ptr<RunParts>> make_run_parts(std::shared_ptr<const RunSetup> setup,
                                                 const RunEnvironment& environment);

}  // namespace percheron
