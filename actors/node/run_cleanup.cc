#include "actors/node/run_cleanup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/log.h"
#include "base/units.h"

namespace percheron {
namespace {

// In the folder of a run's logs: when a process of the run was last seen here, in seconds since
// 1970. What no record tells of runs that other nodes have accepted.
constexpr const char* kLastUse = "last_use";

}  // namespace

Result<double> RunCleanup::last_use(const std::string& run, bool in_use) {
  const std::string path = join_path(logs_.directory_of(run), kLastUse);
  if (!in_use && files_.exists(path)) {
    PERCHERON_ASSIGN_OR_RETURN(const std::string text, files_.read_text(path));
    const double seconds = std::strtod(text.c_str(), nullptr);
    if (std::isfinite(seconds) && seconds > 0) return seconds;
  }
  const double now = this->now();
  PERCHERON_RETURN_IF_ERROR(write_text_atomically(files_, path, fmt::format("{:.0f}\n", now)));
  return now;
}

std::vector<FinishedRun> RunCleanup::finished(RunBook& book, const Busy& busy) {
  std::vector<FinishedRun> finished;
  for (const proto::RunRecord* record : book.all()) {
    if (!run_is_over(record->report().state()) || busy.count(record->id()) != 0) continue;
    finished.push_back({record->id(), std::max(record->submitted(), record->ended())});
  }
  const Result<std::vector<std::string>> logged = logs_.runs();
  if (!logged.ok()) {
    log_warning("logs can't be cleaned up: {}", logged.status().message());
    return finished;
  }
  for (const std::string& run : *logged) {
    if (book.find(run) != nullptr) continue;
    const bool in_use = busy.count(run) != 0;
    const Result<double> used = last_use(run, in_use);
    if (!used.ok()) {
      log_warning("logs of run {} can't be cleaned up: {}", run, used.status().message());
    } else if (!in_use) {
      finished.push_back({run, *used});
    }
  }
  return finished;
}

int RunCleanup::forget(RunBook& book, const Busy& busy) {
  int count = 0;
  const double now = this->now();
  for (const FinishedRun& run : runs_to_forget(finished(book, busy), limits_, now)) {
    // The record goes last: as long as it is there, this is tried again.
    Status done = logs_.set_aside(run.run);
    if (done.ok()) done = book.remove(run.run);
    if (!done.ok()) {
      log_warning("run {} can't be forgotten: {}", run.run, done.message());
      continue;
    }
    log_info("run {}, which ended {} ago, is forgotten: record and logs; its output stays", run.run,
             format_duration(now - run.ended));
    ++count;
  }
  forgotten_ += count;
  return count;
}

}  // namespace percheron
