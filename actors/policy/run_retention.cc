#include "actors/policy/run_retention.h"

#include <algorithm>
#include <tuple>

namespace percheron {
namespace {

constexpr double kDaySeconds = 86400;

}  // namespace

std::vector<FinishedRun> runs_to_forget(std::vector<FinishedRun> finished,
                                        const RetentionLimits& limits, double now) {
  std::sort(finished.begin(), finished.end(), [](const FinishedRun& a, const FinishedRun& b) {
    return std::tie(a.ended, a.run) < std::tie(b.ended, b.run);
  });
  size_t count = 0;
  const auto kept_max = static_cast<size_t>(limits.runs_max);
  if (kept_max > 0 && finished.size() > kept_max) count = finished.size() - kept_max;
  if (limits.days_max > 0) {
    const double before = now - limits.days_max * kDaySeconds;
    while (count < finished.size() && finished[count].ended < before) ++count;
  }
  finished.resize(count);
  return finished;
}

}  // namespace percheron
