#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "tools/line_chart.h"

namespace percheron {

/// The curves of a run, read back from its metrics.jsonl. Where a step stands twice (a resume), the
/// later line counts; a last line cut by a kill is ignored.
class MetricsHistory {
 public:
  static Result<MetricsHistory> read(FileSystem& files, const std::string& path);

  /// The curve of a metric of step lines or evaluation lines, by its name in the file.
  Series series(const std::string& metric, const std::string& shown_as) const;
  /// All metrics that begin with `prefix`, in the order of their names.
  std::vector<std::string> names(const std::string& prefix) const;

 private:
  std::map<std::string, std::map<int64_t, double>> values_;  // metric -> step -> value
};

/// The mean over `window` neighbouring points, so that a noisy curve can be read.
Series smoothed(Series series, size_t window);

}  // namespace percheron
