#include "actors/policy/balance.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace percheron {
namespace {

// Of one device in its role; captures that nobody needs cost nothing.
struct Rates {
  double capture, train;
};

Rates rates_of(const BalanceMeasure& measure) {
  const double needed = std::clamp(measure.captured_share, 0.0, 1.0);
  return {needed > 0 ? measure.capture_samples_per_second / measure.targets / needed
                     : std::numeric_limits<double>::infinity(),
          measure.train_samples_per_second / measure.trainers};
}

RoleSplit split_of(int targets, int trainers, const Rates& rates) {
  return {targets, trainers, std::min(targets * rates.capture, trainers * rates.train)};
}

bool seen(const BalanceMeasure& measure) {
  return measure.targets > 0 && measure.trainers > 0 && measure.train_samples_per_second > 0 &&
         (measure.capture_samples_per_second > 0 || measure.captured_share <= 0);
}

}  // namespace

RoleSplit split_now(const BalanceMeasure& measure) {
  if (!seen(measure)) return {measure.targets, measure.trainers, 0};
  return split_of(measure.targets, measure.trainers, rates_of(measure));
}

std::optional<RoleSplit> best_split(const BalanceMeasure& measure) {
  if (!seen(measure)) return std::nullopt;
  const Rates rates = rates_of(measure);
  const int size = measure.devices_per_target;
  const int devices = measure.targets * size + measure.trainers;
  RoleSplit best = split_now(measure);
  for (int targets = 1; targets * size < devices; ++targets) {
    const RoleSplit split = split_of(targets, devices - targets * size, rates);
    const bool nearer =
        std::abs(targets - measure.targets) < std::abs(best.targets - measure.targets);
    if (split.samples_per_second > best.samples_per_second ||
        (split.samples_per_second == best.samples_per_second && nearer)) {
      best = split;
    }
  }
  return best;
}

std::optional<RoleSplit> BalancePolicy::consider(const BalanceMeasure& measure, double now) {
  if (measure.targets != targets_ || measure.trainers != trainers_) {
    targets_ = measure.targets;
    trainers_ = measure.trainers;
    changed_ = now;
    times_ = 0;
  }
  if (now - changed_ < settle_seconds_) return std::nullopt;
  const std::optional<RoleSplit> best = best_split(measure);
  const RoleSplit current = split_now(measure);
  int direction = 0;
  if (best && best->samples_per_second >= (1 + kGainMin) * current.samples_per_second) {
    direction = best->targets > measure.targets ? 1 : -1;
  }
  times_ = direction != 0 && direction == direction_ ? times_ + 1 : (direction != 0 ? 1 : 0);
  direction_ = direction;
  if (times_ < kTimes) return std::nullopt;
  times_ = 0;
  return split_of(measure.targets + direction,
                  measure.trainers - direction * measure.devices_per_target, rates_of(measure));
}

}  // namespace percheron
