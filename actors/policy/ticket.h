#pragma once

#include <cstdint>

#include "data/micro_batch.h"

namespace percheron {

/// Stands for the features of one micro-batch wherever actors speak of them; the bytes stay in the
/// store of the node that made them.
struct Ticket {
  MicroBatchId id;
  int64_t step = 0;           // of the run, counted from 0
  int32_t node = 0;           // whose store holds the features
  int32_t home = 0;           // deque that it waits in
  int64_t generation = 0;     // how often this micro-batch had been leased to a target before
  uint64_t bytes = 0;         // in the store
  uint64_t region_bytes = 0;  // of the region that holds them, for other processes; else 0
  uint32_t crc32c = 0;        // of that region
  int32_t target = 0;         // that made them
};

}  // namespace percheron
