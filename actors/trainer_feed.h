#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "actors/feature_exchange.h"
#include "actors/messages.h"
#include "actors/policy/trainer_leases.h"
#include "base/clock.h"

namespace percheron {

class DeviceSums;

/// What a trainer is given to compute: fetches the features of all its leases at once, and hands
/// over one micro-batch after the other. Any thread.
class TrainerFeed {
 public:
  struct MicroBatch {
    TrainerLease lease;
    FeaturesPtr features;
    std::shared_ptr<void> announced;  // to those who sum gradients, that these are still to change
    double fetch_seconds = 0;         // in which there was nothing to compute but this was awaited
  };
  /// None is called with a lock held.
  struct Hooks {
    /// Computes, and calls done() when it has. One at a time.
    std::function<void(MicroBatch)> compute;
    /// Makes the device ready for the one after it. Null: that is of no use.
    std::function<void(const FeaturesPtr&)> prepare;
    /// A lease whose features can't be had is over. Told before anything that comes of it.
    std::function<void(const TrainerLease&, const Status&)> unreadable;
  };

  /// `exchange`, `clock` and `sums`, which may be null, are borrowed.
  TrainerFeed(FeatureExchange& exchange, const Clock& clock, DeviceSums* sums, Hooks hooks)
      : exchange_(exchange), clock_(clock), sums_(sums), hooks_(std::move(hooks)) {}

  /// A lease of a membership that is over is forgotten: it is somebody else's by now.
  void take(const TakeTicket& message);
  /// Others are members: forgets what has not begun.
  void regroup(int64_t membership);
  void done();

 private:
  void fetched(const TrainerLease& lease, FeaturesPtr features);
  void unreadable(const TrainerLease& lease, const Status& why);
  void go_on();
  double now() const { return static_cast<double>(clock_.monotonic_ns()) * 1e-9; }

  FeatureExchange& exchange_;
  const Clock& clock_;
  DeviceSums* const sums_;
  const Hooks hooks_;
  std::mutex mutex_;
  TrainerLeases leases_;
  struct Held {
    std::shared_ptr<void> announced;
    FeaturesPtr features;  // once they are fetched
  };
  std::map<int64_t, Held> held_;  // by lease, until they are computed
  double free_since_ = 0;         // it has had nothing to compute
  int64_t prepared_ = 0;          // the last lease that the device was made ready for
};

}  // namespace percheron
