#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace percheron {

/// What each run took. Processor time counts all threads.
struct Timings {
  std::vector<double> wall_seconds, cpu_seconds;
};

/// Does `work` and adds what it took.
Status time_run(const std::function<Status()>& work, Timings& timings);

/// How long to repeat: until `seconds` have passed, and at least `runs_min` times.
struct Repetition {
  double seconds = 4;
  int runs_min = 3;
};

/// Times `work`, which the caller has warmed up. Ends with the first error.
Result<Timings> time_runs(const Repetition& repetition, const std::function<Status()>& work);

enum class ReportFormat {
  kText,  // a line for people: best and median tokens a second
  kJson,  // a line of JSON with the seconds of every run
};

/// What was measured, for programs: "dtype", "shape", ...
using Labels = std::vector<std::pair<std::string, std::string>>;

/// A benchmark's outcome.
struct Measurement {
  std::string name;  // for people
  Labels labels;
  int threads = 1;
  double tokens = 0;  // a run
  Timings timings;
};

/// Prints the measurement to standard output.
void report(const Measurement& measurement, ReportFormat format);

/// Says what went wrong, if anything did; returns main()'s exit code.
int exit_code(const Status& status);

}  // namespace percheron
