#pragma once

#include <cstdint>

#include "base/status.h"
#include "data/epoch_plan.h"
#include "data/token_shard.h"
#include "kernels/device.h"

namespace percheron {

/// Tokens committed per round when prompt lookup, drafting `drafts` tokens a round, is walked over
/// the stored answers of the selected rows, each cut as the selection says: what
/// acceptance_length_walk is for a drafter.
Result<double> lookup_walk(Context& context, const TokenDataset& data,
                           const SampleSelection& selection, int64_t drafts);

}  // namespace percheron
