#pragma once

#include <optional>

namespace percheron {

/// What a run's targets and trainers were seen to do for a while.
struct BalanceMeasure {
  int targets = 0, trainers = 0;  // that are there
  // Of all of them together, while they compute; 0: not seen yet.
  double capture_samples_per_second = 0, train_samples_per_second = 0;
  double captured_share =
      1;  // of the trained samples; the others come from the cache or from files
  int devices_per_target = 1;  // a trainer has one
};

/// A number of targets and trainers of as many devices as there are now.
struct RoleSplit {
  int targets = 0, trainers = 0;
  double samples_per_second = 0;  // that the slower side can do

  bool operator==(const RoleSplit&) const = default;
};

/// What the measure says of the split that there is: the slower side decides.
RoleSplit split_now(const BalanceMeasure& measure);
/// The split of the same devices with the highest throughput, where whoever changes its role is as
/// fast as the average of those that have it, and a target becomes as many trainers as it has
/// devices; the one nearest to that of now among equals.
/// None where a side has not been seen.
std::optional<RoleSplit> best_split(const BalanceMeasure& measure);

/// Decides when a device, or a target with all its devices, shall change its role: one at a time,
/// towards the best split, when that promises kGainMin more in kTimes measures in succession, and
/// not before the last change has settled. So a run whose rates waver is left alone.
class BalancePolicy {
 public:
  static constexpr double kGainMin = 0.15;
  static constexpr int kTimes = 3;

  /// `settle_seconds`: after a change of the workers, until measures count again.
  explicit BalancePolicy(double settle_seconds) : settle_seconds_(settle_seconds) {}

  /// The split with one target more or less that the run shall have now; none = leave it. `now`:
  /// seconds of any monotonic clock.
  std::optional<RoleSplit> consider(const BalanceMeasure& measure, double now);

 private:
  const double settle_seconds_;
  int targets_ = 0, trainers_ = 0;  // of the last measure
  double changed_ = 0;              // when they became that
  int direction_ = 0;               // that the last measures asked for: +1 = one target more
  int times_ = 0;                   // in succession
};

}  // namespace percheron
