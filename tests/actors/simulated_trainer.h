#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/micro_batch.h"

namespace percheron {

/// What a trainer has learnt: the micro-batches of each step, with how often each was added.
using Sums = std::map<MicroBatchId, int>;
using Parameters = std::vector<Sums>;

uint32_t checksum_of(const Parameters& parameters);
/// A line for each step.
std::string text_of(const Parameters& parameters);
/// As much of text_of() as is there.
Parameters parse_parameters(const std::string& text);

}  // namespace percheron
