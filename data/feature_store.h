#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/features.h"
#include "data/micro_batch.h"

namespace percheron {

struct FeatureStoreLimits {
  size_t bytes_max = 0;  // features.bytes_max: reserved, published and still being read together
  size_t step_bytes_max = 0;  // features of the largest step
};

/// What a store holds now, and what went through it. `reserved + published + lingering` never
/// exceeds bytes_max (invariant 2).
struct FeatureStoreCounters {
  size_t reserved_bytes = 0;   // promised to forward passes that run
  size_t published_bytes = 0;  // ready to be read
  size_t lingering_bytes = 0;  // released, but a reader still holds them
  size_t peak_bytes = 0;
  int64_t published = 0;  // micro-batches now in the store
  int64_t published_total = 0;
  int64_t refused_total = 0;  // reservations for which there was no room

  size_t bytes() const { return reserved_bytes + published_bytes + lingering_bytes; }
};

/// The features of one node between their forward pass and the commit of their step, under a hard
/// limit: who makes features reserves their bytes first, and nothing is ever dropped to make room.
///
/// Later steps may use at most bytes_max - step_bytes_max, the open step everything: so the open
/// step's missing features always find room, also those that are made again because their node
/// died, and later steps can't block it.
///
/// Thread-safe. The bytes of a micro-batch count until it is released and its last reader has let
/// go.
class FeatureStore {
 public:
  /// kInvalidArgument when one step does not fit.
  static Result<std::unique_ptr<FeatureStore>> make(const FeatureStoreLimits& limits);
  ~FeatureStore();
  FeatureStore(const FeatureStore&) = delete;
  FeatureStore& operator=(const FeatureStore&) = delete;

  /// Declares which micro-batches [first.index, first.index + count) of first.epoch are the open
  /// step.
  void open_step(MicroBatchId first, int64_t count);

  /// Reserves room for a forward pass. kResourceExhausted when there is none now: try again after a
  /// release. kFailedPrecondition when the micro-batch is reserved or published already.
  Status try_reserve(MicroBatchId id, size_t bytes);
  /// Turns the reservation of features->batch.id into features; room not needed is given back.
  /// kFailedPrecondition without a reservation, kResourceExhausted when they exceed it.
  Status publish(FeaturesPtr features);
  /// The features, or null when they are not here. The bytes count until every copy is gone.
  FeaturesPtr get(MicroBatchId id) const;
  /// Forgets a micro-batch, published or reserved; no effect when there is none.
  void release(MicroBatchId id);
  /// Forgets all of [first.index, first.index + count), as after the commit of a step.
  void release_step(MicroBatchId first, int64_t count);

  FeatureStoreCounters counters() const;
  const FeatureStoreLimits& limits() const { return limits_; }

 private:
  struct Ledger;
  struct Lease;
  struct Entry {
    size_t bytes = 0;
    FeaturesPtr features;  // null while only reserved
  };

  explicit FeatureStore(const FeatureStoreLimits& limits);
  bool in_open_step(MicroBatchId id) const;
  /// The bytes of an entry change from `before` to `now`.
  void count_open(MicroBatchId id, size_t before, size_t now);
  void erase(std::map<MicroBatchId, Entry>::iterator entry, std::vector<FeaturesPtr>& dropped);

  const FeatureStoreLimits limits_;
  // Shared with the features that readers hold, which may outlive the store.
  const std::shared_ptr<Ledger> ledger_;
  std::map<MicroBatchId, Entry> entries_;  // guarded by the ledger's mutex
  MicroBatchId open_first_;
  int64_t open_count_ = 0;
  size_t open_bytes_ = 0;  // of the entries of the open step
};

}  // namespace percheron
