#pragma once

#include <atomic>
#include <set>
#include <string>
#include <vector>

#include "actors/node/process_logs.h"
#include "actors/node/run_book.h"
#include "actors/policy/run_retention.h"
#include "base/clock.h"
#include "base/file_system.h"

namespace percheron {

/// Forgets runs that are over: their records, and the logs of their processes, also of processes
/// that ran here for a run that another node has accepted. Nothing outside the node's state
/// directory is ever touched. Ages grow with the time that has passed since the start: a clock of
/// the day that jumps ahead makes nothing old. The caller of each function holds the lock of the
/// book.
class RunCleanup {
 public:
  /// Everything is borrowed.
  RunCleanup(FileSystem& files, const Clock& clock, ProcessLogs& logs, RetentionLimits limits)
      : files_(files),
        clock_(clock),
        logs_(logs),
        limits_(limits),
        began_(clock.unix_seconds() - monotonic()) {}

  /// What goes on: runs with processes here, and runs of other nodes that are not over.
  using Busy = std::set<std::string>;
  /// Takes what the limits leave out from `book` and out of sight, says which, and returns their
  /// number. What fails is said, and tried again the next time.
  int forget(RunBook& book, const Busy& busy);
  /// Since the start.
  int64_t forgotten() const { return forgotten_; }

 private:
  std::vector<FinishedRun> finished(RunBook& book, const Busy& busy);
  Result<double> last_use(const std::string& run, bool in_use);

  double monotonic() const { return static_cast<double>(clock_.monotonic_ns()) * 1e-9; }
  /// Seconds since 1970, by the clock of the day as it was at the start.
  double now() const { return began_ + monotonic(); }

  FileSystem& files_;
  const Clock& clock_;
  ProcessLogs& logs_;
  const RetentionLimits limits_;
  const double began_;
  std::atomic<int64_t> forgotten_{0};
};

}  // namespace percheron
