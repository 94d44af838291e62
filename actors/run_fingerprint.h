#pragma once

#include <string>

#include "actors/run_setup.h"
#include "data/fingerprint.h"

namespace percheron {

/// What decides a run's features and what its drafter is for: text and templates, the target with
/// its whole configuration and precision, captured layers, draft vocabulary. `target_hash` is
/// Target::weights_hash().
Fingerprint run_fingerprint(const RunSetup& setup, const std::string& target_hash);

/// What a sample's features depend on, for files of them: run_fingerprint() without the mask token
/// and the draft vocabulary, which change none, with the data, whose samples are numbered by their
/// place, and the features' type.
Fingerprint feature_fingerprint(const RunSetup& setup, const std::string& target_hash);

/// What a resumed run may not change: the run's fingerprint, data, packing, steps, the drafter's
/// whole shape, the loss, and those settings of the optimizer that its moments were gathered with
/// (kind, betas, epsilon, momentum). Resolved values, one field each, so that a default may be
/// spelled out. Source: Model-Optimizer#2410, where data that was filtered differently went on
/// silently.
Fingerprint resume_fingerprint(const RunSetup& setup, const std::string& target_hash);

/// What a resumed run may change, which is then said: rates, weight decay, clipping, the schedule,
/// where captured features lie.
Fingerprint changeable_settings(const RunSetup& setup);

}  // namespace percheron
