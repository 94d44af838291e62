#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "actors/gradient_buckets.h"
#include "base/status.h"
#include "kernels/device_groups.h"

namespace percheron {

class StepTrainer;

/// One trainer's part in sums of gradients between devices, over all changes of who is in the
/// group: begun while the step's last micro-batches compute, given up where more come or the
/// members change, and begun again with those who are there then.
///
/// An actor says what counts and never waits; another thread (the reducer) does the work.
class DeviceSums {
 public:
  /// `groups` and `buckets` are borrowed; `self` is the trainer's number; `stream` is of its
  /// device.
  DeviceSums(DeviceGroups& groups, int self, GradientBuckets& buckets,
             std::unique_ptr<Stream> stream)
      : groups_(groups), self_(self), buckets_(buckets), stream_(std::move(stream)) {}
  ~DeviceSums();
  DeviceSums(const DeviceSums&) = delete;
  DeviceSums& operator=(const DeviceSums&) = delete;

  // --- the actor
  /// As GradientBuckets::announce(), for a micro-batch of `step`: what was begun for this step
  /// counts no more.
  std::shared_ptr<void> announce(int64_t step);
  /// For a job that forgets what was summed.
  std::shared_ptr<void> announce() { return buckets_.announce(); }
  /// Every micro-batch of `step` that was not announced is another trainer's. `group`: who sums it,
  /// as the mailbox counts. Returns the attempt for put_in(), none where it was begun already.
  std::optional<int64_t> begin(int64_t step, int64_t group);
  /// What was begun counts no more, and its group sums no more. Any thread.
  void give_up(const std::string& why);

  // --- the reducer
  /// Joins the group of begin() unless it is in it, and puts all buckets in, each when it is
  /// complete. What fails is told by wait().
  void put_in(StepTrainer& trainer, int64_t attempt, std::span<const int> members);
  /// Waits until the sums of `step` are there and all micro-batches that were announced are over.
  /// kUnavailable if the attempt was given up, or the group failed.
  Status wait(int64_t step);

 private:
  /// The group of this attempt, null where it is given up meanwhile.
  Result<std::shared_ptr<DeviceCollective>> join(int64_t attempt, std::span<const int> members);
  void give_up_locked(const std::string& why);
  void end(int64_t attempt, const Status& outcome);

  DeviceGroups& groups_;
  const int self_;
  GradientBuckets& buckets_;
  const std::unique_ptr<Stream> stream_;  // the reducer's
  std::mutex mutex_;
  int64_t attempt_ = 0;  // the last one that was begun or given up
  bool active_ = false;  // it was begun and not given up
  int64_t step_ = -1, group_ = -1;
  Status outcome_;                                // of put_in()
  int64_t joined_ = -1;                           // the group of collective_
  std::shared_ptr<DeviceCollective> collective_;  // used by the reducer, aborted by any
};

}  // namespace percheron
