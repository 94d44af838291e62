#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/micro_batch.h"

namespace percheron {

/// kDataLoss that names the sample and token of row `row`, of which the target's state `state`
/// ("after layer 3") is not finite.
Status state_not_finite(const MicroBatch& batch, int64_t row, const std::string& state);

/// Appends the rows of document `d` whose next token is supervised and of the same document.
void add_supervised_rows(const MicroBatch& batch, size_t d, std::vector<int32_t>& rows);

}  // namespace percheron
