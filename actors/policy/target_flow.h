#pragma once

#include <algorithm>
#include <cstdint>

namespace percheron {

/// When a target begins a micro-batch and when it asks for one. The pass of the next is put into
/// the device's stream while what follows the pass of the one before goes on: copies, checks and
/// publication. At most kInFlightMax are under way; more that are given wait.
class TargetFlow {
 public:
  static constexpr int kInFlightMax = 2;

  /// The sampler gave it one more.
  void given() {
    ++waiting_;
    asked_ = false;
  }
  /// Whether the first that waits is to begin now: it does.
  bool begin() {
    if (beginning_ || waiting_ == 0 || in_flight_ >= kInFlightMax) return false;
    --waiting_;
    ++in_flight_;
    beginning_ = true;
    return true;
  }
  /// The pass of the one that began last is in the stream, or can't be put in.
  void begun() { beginning_ = false; }
  /// The features of one are published, or could not be made.
  void ended() { --in_flight_; }
  /// Whether to ask the sampler for one more: it is asked.
  bool ask() {
    if (asked_ || beginning_ || waiting_ > 0 || in_flight_ >= kInFlightMax) return false;
    asked_ = true;
    return true;
  }

  int in_flight() const { return in_flight_; }

 private:
  int waiting_ = 0, in_flight_ = 0;
  bool beginning_ = false, asked_ = false;
};

/// How long a target is at each of its micro-batches where the work on one overlaps that on the
/// next: what each adds to the time that all of them take, if the target never waits for work.
/// Times in nanoseconds of one clock.
class PassTimer {
 public:
  /// A pass that began, as far as the host sees it, at `begin` was done at `passed`, and what
  /// follows on the host at `end`. In the order of the passes.
  int64_t add(int64_t begin, int64_t passed, int64_t end) {
    // The stream runs one after the other: a pass that was put in early waits for the one before.
    const int64_t pass = passed - std::min(passed, std::max(begin, last_passed_));
    last_passed_ = std::max(last_passed_, passed);
    return std::max(pass, end - passed);  // The longer of two stages is what a pipeline takes.
  }

 private:
  int64_t last_passed_ = 0;
};

}  // namespace percheron
