#pragma once

#include <cstdint>

#include "base/status.h"
#include "data/epoch_plan.h"
#include "model/drafter.h"
#include "model/drafter_config.h"
#include "model/optimizer.h"
#include "model/schedule.h"
#include "proto/run.pb.h"

namespace percheron {

/// Parts of resolve_run() that need only the configuration: each fills in the defaults that depend
/// on the kind of drafter and names key and value of what is out of range.

/// Only the numbers that are given, whatever kind of drafter reads them.
Status check_drafter_numbers(const proto::Drafter& drafter);
DrafterKind drafter_kind(const proto::Run& run);
/// All but the mask token.
DrafterChoice drafter_choice(const proto::Drafter& drafter);
/// Without bucket_bounds. kInvalidArgument too for a key that data.order does not read, and for
/// features.cache_* where each epoch pads samples otherwise.
Result<PlanOptions> resolve_plan_options(const proto::Run& run);
Result<LossConfig> resolve_loss(const proto::Run& run, const DrafterConfig& drafter);
Result<OptimizerConfig> resolve_optimizer(const proto::Run& run);
Result<Schedule> resolve_schedule(const proto::Schedule& schedule, int64_t steps);

}  // namespace percheron
