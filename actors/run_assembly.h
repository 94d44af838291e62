#pragma once

// The pieces of which a run is put together: all of them in one process, or some in each.

#include <optional>
#include <string>
#include <vector>

#include "actors/run_checkpoint.h"
#include "actors/run_parts.h"
#include "base/status.h"
#include "data/fingerprint.h"
#include "kernels/device.h"

namespace percheron {

/// Starts a worker for every device of parts.setup->placement.
Status open_devices(RunParts& parts);
/// Loads the target where a target or a trainer of this process needs it: for trainers alone
/// without its layers. Before that the devices' scratch memory is reserved.
Status load_targets(RunParts& parts);
/// Looks at the files of features and loads the targets' layers where they are needed all the same.
Status open_offline(RunParts& parts, const std::string& target_hash, RunObserver& observer);
/// Says what weights of 8 bits cost, where the target is to run, and keeps it in
/// parts.weights_comparison; nothing with full ones. After open_offline().
Status compare_weights(RunParts& parts, RunObserver& observer);
/// Opens the cache of features for later epochs, where there is to be one.
Status open_cache(RunParts& parts, const Fingerprint& fingerprint);
/// Creates the output directory and keeps others out of it.
Status lock_output(RunParts& parts);
/// The checkpoint to go on from, if any.
Result<std::optional<ResumePoint>> find_resume_point(RunParts& parts,
                                                     const RunEnvironment& environment);
/// A target on `id`, whose model is loaded.
TargetPlace make_target(RunParts& parts, DeviceId id);
/// The trainers of parts.setup->placement, all with the same parameters: of `point`, else new ones.
/// They reduce by parts.collectives, where there is one, by their `numbers` in the run.
Status make_trainers(RunParts& parts, const std::optional<ResumePoint>& point,
                     const std::vector<int>& numbers);
/// Says what a reader of the run's log wants to know before it begins.
void tell_about_setup(const RunSetup& setup, const RunParts& parts, RunObserver& observer);

}  // namespace percheron
