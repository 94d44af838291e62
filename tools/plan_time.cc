#include "tools/plan_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/units.h"
#include "tools/metrics_history.h"

namespace percheron {
namespace {

constexpr size_t kStepsLookedAt = 50;

/// The median of the last recorded steps' seconds; 0 when none is recorded.
double recorded_step_seconds(FileSystem& files, const std::string& path) {
  if (!files.exists(path)) return 0;
  const Result<MetricsHistory> history = MetricsHistory::read(files, path);
  if (!history.ok()) return 0;
  std::vector<double> seconds;
  for (const auto& [step, value] : history->series("perf/step_seconds", "").points) {
    seconds.push_back(value);
  }
  if (seconds.size() > kStepsLookedAt)
    seconds.erase(seconds.begin(), seconds.end() - kStepsLookedAt);
  if (seconds.empty()) return 0;
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace

std::string plan_time(FileSystem& files, const std::string& directory, int64_t steps) {
  const double seconds = recorded_step_seconds(files, join_path(directory, "metrics.jsonl"));
  if (!(seconds > 0)) return "time        not known yet: measured once steps run (eta)\n";
  return fmt::format("time        {} for all steps at {} a step, as recorded in {}\n",
                     format_duration(seconds * static_cast<double>(steps)),
                     format_duration(seconds), join_path(directory, "metrics.jsonl"));
}

}  // namespace percheron
