#include "bench/measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

namespace percheron {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void print_text(const Measurement& measurement) {
  std::vector<double> wall = measurement.timings.wall_seconds;
  std::ranges::sort(wall);
  const double cpu = std::ranges::min(measurement.timings.cpu_seconds);
  fmt::print("  {:<46} best {:>8.1f} tokens/s, median {:>8.1f}, by processor time {:>8.1f}\n",
             measurement.name, measurement.tokens / wall.front(),
             measurement.tokens / wall[wall.size() / 2], measurement.tokens / cpu);
}

void print_json(const Measurement& measurement) {
  nlohmann::ordered_json line;
  for (const auto& [key, value] : measurement.labels) line[key] = value;
  line["threads"] = measurement.threads;
  line["tokens"] = measurement.tokens;
  line["wall_seconds"] = measurement.timings.wall_seconds;
  line["cpu_seconds"] = measurement.timings.cpu_seconds;
  fmt::print("{}\n", line.dump());
}

}  // namespace

Status time_run(const std::function<Status()>& work, Timings& timings) {
  const std::clock_t cpu_begin = std::clock();
  const Clock::time_point wall_begin = Clock::now();
  PERCHERON_RETURN_IF_ERROR(work());
  timings.wall_seconds.push_back(seconds_since(wall_begin));
  timings.cpu_seconds.push_back(static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC);
  return ok_status();
}

Result<Timings> time_runs(const Repetition& repetition, const std::function<Status()>& work) {
  Timings timings;
  const Clock::time_point begin = Clock::now();
  while (static_cast<int>(timings.wall_seconds.size()) < repetition.runs_min ||
         seconds_since(begin) < repetition.seconds) {
    PERCHERON_RETURN_IF_ERROR(time_run(work, timings));
  }
  return timings;
}

void report(const Measurement& measurement, ReportFormat format) {
  if (format == ReportFormat::kJson) {
    print_json(measurement);
  } else {
    print_text(measurement);
  }
  std::fflush(stdout);
}

int exit_code(const Status& status) {
  if (status.ok()) return 0;
  fmt::print(stderr, "error: {}\n", status.message());
  return 1;
}

}  // namespace percheron
