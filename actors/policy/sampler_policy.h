#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "actors/policy/credits.h"
#include "actors/policy/lease_table.h"
#include "actors/policy/micro_batch_map.h"

namespace percheron {

/// A micro-batch leased to a target.
struct Production {
  WorkUnit unit;
  int64_t lease = 0;
  int64_t generation = 0;  // how often it had been leased before
};

/// Hands out micro-batches to targets in order, each as soon as its credit is there. What a lost
/// target or node held is handed out again before anything newer.
class SamplerPolicy {
 public:
  /// `next_unit` yields the micro-batches of the run in order, each once, then nothing. `credits`
  /// is borrowed. `lease_ttl_ns`: 0 = leases have no end.
  SamplerPolicy(std::function<std::optional<WorkUnit>()> next_unit, CreditSource& credits,
                int64_t lease_ttl_ns);

  /// What next() would hand out, whatever the room; null if there is nothing.
  const WorkUnit* upcoming();
  /// The next micro-batch for an idle target on `node`; none if there is none or no room now.
  std::optional<Production> next(int target, int node, int64_t now_ns);
  /// Its features are in the store. False, and counted, for a stale lease: free what was stored.
  bool produced(MicroBatchId id, int target, int64_t lease);
  /// The features of a micro-batch are freed.
  void freed(MicroBatchId id) { forget(id); }
  /// A step is committed, so the next is the open one.
  void set_open_step(int64_t step) { open_step_ = step; }

  /// A target died or its leases ran out: returns how many micro-batches are queued again.
  size_t target_lost(int target);
  size_t expire_leases(int64_t now_ns);
  /// A node died with its features: all that it held and that is not freed is queued again.
  size_t node_lost(int node);
  /// As node_lost(), where the mailbox tells which of the produced ones are still needed: only what
  /// is leased there is queued again, and the node's room is given back.
  size_t leases_of_node_lost(int node);
  /// One micro-batch must be produced again, though it was produced. No effect when it is freed.
  void produce_again(MicroBatchId id);
  /// Forgets all that was handed out, with its credits: the run goes back to an earlier step, from
  /// which next_unit goes on. Older leases stay stale.
  void restart();

  /// Everything was handed out.
  bool out_of_work() const { return ended_ && !peeked_ && again_queue_.empty(); }
  /// Everything was handed out, and every lease is settled.
  bool exhausted() const;
  /// Nothing of `epoch` is left to hand out or leased.
  bool epoch_exhausted(int64_t epoch) const;
  bool target_has_leases(int target) const { return leases_.held_by(target) != 0; }
  size_t leased() const { return leases_.outstanding(); }
  int64_t stale() const { return stale_; }
  int64_t produced_again() const { return again_; }

 private:
  struct Flight {
    WorkUnit unit;
    int node = 0;
    int64_t leases = 0;
  };
  const WorkUnit* peek();
  void requeue(MicroBatchId id);
  void forget(MicroBatchId id);

  std::function<std::optional<WorkUnit>()> next_unit_;
  CreditSource& credits_;
  LeaseTable leases_;
  std::optional<WorkUnit> peeked_;
  bool ended_ = false;
  MicroBatchMap<Flight> flights_;       // handed out and not freed
  std::set<MicroBatchId> again_queue_;  // of flights_, to be handed out again
  int64_t open_step_ = 0;
  int64_t stale_ = 0, again_ = 0;
};

}  // namespace percheron
