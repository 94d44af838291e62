#pragma once

#include <string>
#include <vector>

namespace percheron {

/// How much a node remembers of runs that are over; 0 is no limit.
struct RetentionLimits {
  int runs_max = 200;
  double days_max = 90;
};

struct FinishedRun {
  std::string run;
  double ended = 0;  // seconds since 1970
};

/// The runs that are to be forgotten at `now`, the oldest first: those that ended more than
/// days_max ago, and those beyond the newest runs_max. One whose end lies ahead, by a clock that
/// was set back, is new.
std::vector<FinishedRun> runs_to_forget(std::vector<FinishedRun> finished,
                                        const RetentionLimits& limits, double now);

}  // namespace percheron
