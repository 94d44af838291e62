#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "actors/policy/micro_batch_map.h"
#include "base/status.h"
#include "data/micro_batch.h"

namespace percheron {

/// A micro-batch about to be produced: what the sampler knows before the target runs.
struct WorkUnit {
  MicroBatchId id;
  int64_t step = 0;         // of the run
  uint64_t bytes = 0;       // of its features in the store
  uint64_t step_bytes = 0;  // of all features of its step
};

/// Where a sampler asks for room before a target runs: no credit, no forward pass (invariant 2).
class CreditSource {
 public:
  virtual ~CreditSource() = default;
  /// Reserves room on `node`; false if there is none now. `open_step` is the first uncommitted one.
  virtual bool try_grant(int node, const WorkUnit& unit, int64_t open_step) = 0;
  /// Gives back the room of a micro-batch: freed, or never produced. Unknown ids are ignored.
  virtual void release(MicroBatchId id) = 0;
  /// Gives back all room of a node that is lost.
  virtual void node_lost(int node) = 0;
};

/// Credits by a model of every node's store, where the stores themselves are elsewhere. A grant
/// keeps, on that node, the room that any earlier step still open could come to need there, so that
/// features of later steps never lock out the ones that free them.
class Credits final : public CreditSource {
 public:
  /// `bytes_max`: the limit of each node. `ahead_max`: so many micro-batches at most on a node
  /// before one of a step that is not open yet gets credit there; 0 = any number.
  explicit Credits(std::vector<uint64_t> bytes_max, int64_t ahead_max = 0);
  /// One more node, with the next number.
  void add_node(uint64_t bytes_max) { nodes_.push_back({bytes_max, 0, 0, 0, {}}); }
  int nodes() const { return static_cast<int>(nodes_.size()); }

  /// kInvalidArgument, naming features.bytes_max and the least value that works, if a step of
  /// `step_bytes` does not fit at once.
  static Status check_limit(uint64_t bytes_max, uint64_t step_bytes);

  bool try_grant(int node, const WorkUnit& unit, int64_t open_step) override;
  void release(MicroBatchId id) override;
  void node_lost(int node) override;

  uint64_t in_use(int node) const { return nodes_[node].in_use; }
  uint64_t peak(int node) const { return nodes_[node].peak; }

 private:
  using StepBytes = std::vector<std::pair<int64_t, uint64_t>>;  // by step, ascending
  struct Node {
    uint64_t bytes_max = 0;
    uint64_t in_use = 0;
    uint64_t peak = 0;
    int64_t units = 0;  // micro-batches
    StepBytes by_step;  // held
  };
  struct Grant {
    int node = 0;
    int64_t step = 0;
    uint64_t bytes = 0;
  };
  static uint64_t& bytes_of(StepBytes& steps, int64_t step);

  const int64_t ahead_max_;
  std::vector<Node> nodes_;
  MicroBatchMap<Grant> grants_;
  StepBytes step_bytes_;  // all features, of every step that a grant was given for, and open
};

}  // namespace percheron
