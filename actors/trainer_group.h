#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "base/status.h"
#include "kernels/collective.h"

namespace percheron {

/// One trainer's place among those that reduce together, over all changes of who they are. What
/// waits in a group that is left ends at once, so that a dead member holds up nobody.
class TrainerGroup {
 public:
  /// `factory` is borrowed; `self` is the trainer's number.
  TrainerGroup(CollectiveFactory& factory, int self) : factory_(factory), self_(self) {}

  /// From now on only `membership` and later ones count: calls in earlier groups return
  /// kUnavailable. Any thread; never waits.
  void leave_for(int64_t membership);
  /// Waits for the other members. kUnavailable if they don't come or a later membership is wanted.
  Status join(int64_t membership, std::span<const int> members);
  /// Sums over the members of `membership`, as Collective does. kUnavailable if that is not the
  /// group that was joined last, or it failed; values are undefined then.
  Status all_reduce_sum(int64_t membership, std::span<float> floats, std::span<double> doubles);
  /// Every pending and later call returns kUnavailable. Any thread; never waits.
  void close();

 private:
  CollectiveFactory& factory_;
  const int self_;
  std::mutex mutex_;
  int64_t wanted_ = 0;                      // the earliest membership that counts
  int64_t joined_ = -1;                     // the membership of the group
  std::shared_ptr<Collective> collective_;  // used by the thread that joins, aborted by any
};

}  // namespace percheron
