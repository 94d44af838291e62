#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace percheron {

/// What a target or a trainer spends its time on. All but kCompute, kReduce and kUpdate is waiting.
enum class Occupation {
  kIdle,      // the run has not begun, or is over; the worker is lost, or its work was for nothing
  kCompute,   // forward pass of a target; forward and backward pass of a trainer
  kDevice,    // has work, but another actor's job runs on its device
  kRoom,      // target: features.bytes_max leaves no room for another micro-batch
  kWork,      // target: everything is handed out
  kFeatures,  // trainer: features of the open step are not made yet
  kStepEnd,   // trainer: others compute the last micro-batches of the step
  kReduce,    // trainer: sums of all trainers
  kUpdate,    // trainer: the optimizer
  kEvaluation,  // held-out acceptance is measured, or its features are made
  kCheckpoint,  // parameters are copied, or the checkpoint before is not written yet
};
inline constexpr size_t kOccupations = 11;

/// As metrics spell it: "step_end".
std::string_view occupation_name(Occupation occupation);
bool is_waiting(Occupation occupation);

/// Seconds by occupation.
class OccupationSeconds {
 public:
  double& operator[](Occupation occupation) { return seconds_[static_cast<size_t>(occupation)]; }
  double operator[](Occupation occupation) const {
    return seconds_[static_cast<size_t>(occupation)];
  }
  double total() const;
  OccupationSeconds& operator+=(const OccupationSeconds& other);
  OccupationSeconds operator-(const OccupationSeconds& other) const;

 private:
  std::array<double, kOccupations> seconds_{};
};

/// The time of one worker, every moment of it on one account. What an account holds never
/// decreases. Times in seconds since any start.
class OccupationClock {
 public:
  explicit OccupationClock(double now) : since_(now) {}

  /// From now on the worker does `next`; what it did before ends.
  void enter(Occupation next, double now);
  /// A job of the worker's, which began with begin_job(), is over: it ran for `seconds`, waited
  /// `fetch_seconds` for features, and for the rest of the time for `reason`. The worker is idle
  /// from now on.
  void end_job(double seconds, double fetch_seconds, Occupation reason, double now);
  void begin_job(double now);

  bool in_job() const { return in_job_; }
  Occupation occupation() const { return occupation_; }
  /// Until now. A job is counted when it ends: only then is known how long it waited.
  OccupationSeconds seconds(double now) const;

 private:
  OccupationSeconds seconds_;
  Occupation occupation_ = Occupation::kIdle;
  bool in_job_ = false;
  double since_;
};

}  // namespace percheron
