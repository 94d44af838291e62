#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "actors/policy/occupation.h"

namespace percheron {

/// What a run would be faster without.
enum class Bottleneck {
  kUnknown,       // too little was seen
  kTargets,       // trainers wait for features, targets compute without a pause
  kTrainers,      // trainers compute without a pause
  kStoreBytes,    // trainers wait for features while targets wait for room
  kSharedDevice,  // targets and trainers wait for each other's jobs on one device
  kStepEnd,       // trainers wait for the last micro-batches of a step
  kReduction,     // sums over all trainers and the update
  kEvaluation,
  kCheckpoint,
};
inline constexpr size_t kBottlenecks = 9;

/// As metrics spell it: "store_bytes".
std::string_view bottleneck_name(Bottleneck bottleneck);

/// What a run's workers did for a while.
struct RunTimes {
  OccupationSeconds targets, trainers;  // of all of them together
  bool shared_device = false;           // a target and a trainer have one device
  size_t queued_later = 0;              // tickets of steps that are not open yet, now
};

/// The share of `occupation` in `seconds`; 0 of nothing.
double share_of(const OccupationSeconds& seconds, Occupation occupation);

/// Names a run's bottleneck from what its workers did, and stays with it while the shares only
/// waver: another one must be the larger by kLead in kTimes windows in succession.
class BottleneckJudge {
 public:
  // Trainers that lose less than this are the bottleneck themselves; one that was named stays until
  // the loss is below kLossLeave.
  static constexpr double kLossEnter = 0.15, kLossLeave = 0.08;
  static constexpr double kLead = 0.05;
  static constexpr int kTimes = 3;

  /// `window`: what was done since a while ago; not only since the last call.
  Bottleneck judge(const RunTimes& window);
  Bottleneck current() const { return current_; }

 private:
  Bottleneck candidate(const RunTimes& window) const;

  Bottleneck current_ = Bottleneck::kUnknown;
  Bottleneck rival_ = Bottleneck::kUnknown;
  int rival_times_ = 0;
};

/// A sentence for people: what is slow, the shares that say so, and what can be done.
std::string bottleneck_words(Bottleneck bottleneck, const RunTimes& window);

}  // namespace percheron
