#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"

namespace percheron {

/// A fixed group of ranks that reduce together; one object per rank, each used by one thread.
/// A group that failed stays failed: members leave it and form a new one.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Sums `values` over all ranks in rank order, so that every rank ends with the same bits and a
  /// repeated run too. Host memory. kUnavailable if a member left or the group was aborted;
  /// `values` are then undefined.
  virtual Status all_reduce_sum(std::span<float> values) = 0;
  virtual Status all_reduce_sum(std::span<double> values) = 0;
  /// Copies rank 0's values to all.
  virtual Status broadcast(std::span<float> values) = 0;
  /// Makes every pending and later call of every member return kUnavailable. Any thread.
  virtual void abort() = 0;
};

/// Forms groups whose members change over a run: each change is a new membership, a number that
/// grows.
class CollectiveFactory {
 public:
  virtual ~CollectiveFactory() = default;
  /// Forms the group of `membership`: waits until all `members`, which each of them names in the
  /// same order, have joined it. Ranks follow that order; `self` is the caller's number among them.
  /// kUnavailable when not all came within the factory's time-out, or the membership was abandoned.
  virtual Result<std::unique_ptr<Collective>> join(int64_t membership, std::span<const int> members,
                                                   int self) = 0;
  /// Makes every pending and later join of `membership`, and of those before it, return
  /// kUnavailable. Any thread; never waits.
  virtual void abandon(int64_t membership) = 0;
};

/// A group of `size` ranks in this process, through shared memory.
std::vector<std::unique_ptr<Collective>> make_local_collectives(int size);

/// For members that are threads of this process, which all use this one object: thread-safe.
/// `timeout_seconds` limits each join.
std::unique_ptr<CollectiveFactory> make_local_collective_factory(double timeout_seconds);

}  // namespace percheron
