#pragma once

#include <memory>
#include <string>

#include "actors/run_setup.h"
#include "base/file_system.h"
#include "base/status.h"
#include "data/offline_features.h"
#include "kernels/device.h"
#include "model/target.h"

namespace percheron {

/// Checks features.from and what goes with it. kInvalidArgument names the key: an order of the
/// epoch that pads, a state that the target does not have, a last slot without the others.
Status check_offline_settings(const proto::Run& run, const PlanOptions& data,
                              const ModelConfig& target);

/// The run's files of features; null without features.from. `target_hash` is
/// Target::weights_hash(), `run_digest` what features carry. Errors as OfflineFeatures::open().
Result<std::unique_ptr<OfflineFeatures>> open_offline_features(const RunSetup& setup,
                                                               FileSystem& files,
                                                               const std::string& target_hash,
                                                               const std::string& run_digest);

/// Tells `offline` the target's final norm where it needs to know. On the device's worker.
Status tell_final_norm(Context& context, const RunSetup& setup, const Target& target,
                       OfflineFeatures& offline);

/// Whether the target must run: for samples that the files lack, or held-out ones.
bool target_must_run(const RunSetup& setup, const OfflineFeatures* offline);

/// "1,200 of 1,600 samples lie in captured (1.20 GiB), 400 are computed".
std::string coverage_text(const RunSetup& setup, const OfflineCoverage& coverage);

}  // namespace percheron
