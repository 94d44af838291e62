#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/target.h"
#include "model/transformer_layer.h"

namespace percheron {

/// Host-side indices of one forward pass over packed rows, without a device: which cache rows they
/// fill, at which position each row stands and which keys it sees.
struct RowPlan {
  std::vector<int64_t> lengths;      // [D] tokens of each sequence, those in the cache included
  std::vector<int32_t> positions;    // [T] position in the sequence
  std::vector<int32_t> sequence;     // [T] index of the sequence
  std::vector<CacheRun> cache_runs;  // empty without a cache
  std::map<int64_t, std::vector<int32_t>> intervals;  // window (0 = none) -> [T, 4]
  std::set<int64_t> causal_windows;  // without a cache: those whose intervals are is_causal()
};

/// Whether every row of `intervals` [T, 4] sees its own document up to itself and nothing else.
/// offsets: [D + 1], rising from 0 to T. Looks at every row: a mask is proved, not believed.
bool is_causal(std::span<const int32_t> offsets, std::span<const int32_t> intervals);

/// Checks `rows` against the vocabulary and the cache and lays them out. `windows` are the layers'
/// sliding windows. kInvalidArgument names the row or sequence and the limit that it breaks.
Result<RowPlan> plan_rows(const PackedSequences& rows, int64_t vocab_size, const KvCache* cache,
                          std::span<const int64_t> windows);

}  // namespace percheron
