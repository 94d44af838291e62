#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/plan_simulation.h"
#include "tools/line_chart.h"

namespace percheron {

/// For each order of batches: every bucket's share of the batches along the epoch of `seed`.
std::vector<LineChart> batch_order_charts(std::span<const int64_t> counts, uint64_t seed);

/// The mean length of the samples along an epoch of `options.seed`, for each epoch order. `options`
/// come from resolve_buckets() under EpochOrder::kBucketed.
LineChart length_chart(const SampleSelection& selection, const PlanOptions& options);

}  // namespace percheron
