#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace percheron {

/// How often, and after what waits, a process that ended is started again.
struct RestartLimits {
  double wait_min_seconds = 0.5, wait_max_seconds = 30;  // doubles with every restart
  int restarts_max = 5;  // within window_seconds; then it stays away
  double window_seconds = 600;
  double proven_seconds = 5;            // of work, in which the run got on: then it begins anew
  double unreachable_wait_seconds = 3;  // a node that can't be reached is tried again for ever
};

/// The deaths of one process of a run. Waits grow while it does not live; one that lived and got
/// on begins with the shortest again. Times are seconds of one clock; progress is the highest step
/// that the run has committed, so that steps which are done again after every death are none.
class RestartHistory {
 public:
  explicit RestartHistory(RestartLimits limits = {}) : limits_(limits) {}

  /// From now on it does its work; further calls have no effect until it ended.
  void working(double now, int64_t progress);
  /// It has ended. Seconds to wait before it is started again; none when it is to stay away.
  std::optional<double> ended(double now, int64_t progress);
  /// Of the deaths that count.
  int count() const { return static_cast<int>(deaths_.size()); }
  /// As if it had never ended.
  void forgive() { deaths_.clear(); }

 private:
  bool is_proven(double now, int64_t progress) const;

  RestartLimits limits_;
  std::vector<double> deaths_;  // when
  double wait_ = 0;             // before its last start
  std::optional<double> working_since_;
  int64_t progress_ = 0;  // then
};

}  // namespace percheron
