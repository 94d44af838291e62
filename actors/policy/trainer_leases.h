#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "data/micro_batch.h"

namespace percheron {

/// A micro-batch that a trainer may compute.
struct TrainerLease {
  MicroBatchId id;
  int64_t token = 0;       // of the lease, never used twice
  int64_t membership = 0;  // whose sums it belongs to
  bool in_order = false;   // it is added behind those of a lower index
};

/// The leases of one trainer as it sees them itself: features of all of them are fetched at once,
/// and one after the other is computed, in the order in which they were given, or by their index
/// where the sums must have the same bits in every run. What was given by an older membership is
/// dropped.
class TrainerLeases {
 public:
  /// The trainer fetches the features of `lease` now; false, and to be forgotten, if others have
  /// become members since it was given. One of a later membership begins that.
  bool add(const TrainerLease& lease);
  /// Others are members: drops what it holds of an older membership and has not begun.
  void regroup(int64_t membership);

  /// The features are there. False if the lease was dropped meanwhile.
  bool fetched(int64_t token);
  /// They can't be had, so that the lease is over. False likewise. Where the order counts nothing
  /// behind it is computed before it is leased again.
  bool unreadable(int64_t token);

  /// The lease after the one that is computed, if its features are there: what can be made ready
  /// on the device meanwhile.
  std::optional<TrainerLease> after_current() const;
  /// What to compute now, if anything: from here on the trainer is at it until done().
  std::optional<TrainerLease> begin();
  void done() { computing_ = false; }

  /// Nothing is computed, fetched or left to be computed: the trainer may ask for a ticket.
  bool idle() const { return !computing_ && held_.empty(); }
  bool computing() const { return computing_; }

 private:
  struct Held {
    TrainerLease lease;
    bool fetched = false;
  };
  std::vector<Held>::iterator find(int64_t token);

  int64_t membership_ = 0;
  bool computing_ = false;
  std::vector<Held> held_;          // without the one that is computed, in the order of computing
  std::set<MicroBatchId> missing_;  // unreadable, where the order counts, and not leased again
};

}  // namespace percheron
