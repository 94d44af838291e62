#include "model/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace percheron {
namespace {

// The share of the way from `begin`; a phase of no steps counts as one, as in transformers.
double progress_in(int64_t step, int64_t begin, int64_t steps) {
  return static_cast<double>(step - begin) / static_cast<double>(std::max<int64_t>(1, steps));
}

double cosine(double cycles, double progress) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * progress));
}

double lifted(double factor, double floor) { return std::max(0.0, factor * (1.0 - floor) + floor); }

double warmup_factor(const Schedule& schedule, int64_t step) {
  if (schedule.warmup == Warmup::kFromOne) return progress_in(step + 1, 0, schedule.warmup_steps);
  const double factor = progress_in(step, 0, schedule.warmup_steps);
  return schedule.shape == ScheduleShape::kWsd ? lifted(factor, schedule.floor) : factor;
}

double wsd_factor(const Schedule& schedule, int64_t step) {
  const int64_t decay_begin = schedule.total_steps - schedule.decay_steps;
  if (step < decay_begin) return 1.0;
  if (step >= schedule.total_steps) return schedule.floor;
  const double progress = progress_in(step, decay_begin, schedule.decay_steps);
  const bool linear = schedule.decay == WsdDecay::kLinear;
  return lifted(linear ? 1.0 - progress : cosine(schedule.cycles, progress), schedule.floor);
}

}  // namespace

Status check_schedule(const Schedule& schedule) {
  if (schedule.total_steps < 1) {
    return invalid_argument(
        fmt::format("a schedule of {} steps: at least 1 is needed", schedule.total_steps));
  }
  if (schedule.warmup_steps < 0 || schedule.warmup_steps > schedule.total_steps) {
    return invalid_argument(fmt::format("{} warm-up steps do not fit into {} steps",
                                        schedule.warmup_steps, schedule.total_steps));
  }
  if (!(schedule.floor >= 0 && schedule.floor <= 1)) {
    return invalid_argument(fmt::format("schedule.floor {} is not within 0 and 1", schedule.floor));
  }
  if (!(schedule.cycles > 0) || !std::isfinite(schedule.cycles)) {
    return invalid_argument(
        fmt::format("{} cosine cycles: more than 0 are needed", schedule.cycles));
  }
  const int64_t after_warmup = schedule.total_steps - schedule.warmup_steps;
  if (schedule.decay_steps < 0 || schedule.decay_steps > after_warmup) {
    return invalid_argument(fmt::format("{} decay steps do not fit into the {} after the warm-up",
                                        schedule.decay_steps, after_warmup));
  }
  return ok_status();
}

double schedule_factor(const Schedule& schedule, int64_t step) {
  if (schedule.past_end == PastEnd::kHold) step = std::min(step, schedule.total_steps);
  if (step < schedule.warmup_steps) return warmup_factor(schedule, step);
  const double progress =
      progress_in(step, schedule.warmup_steps, schedule.total_steps - schedule.warmup_steps);
  switch (schedule.shape) {
    case ScheduleShape::kCosine: return lifted(cosine(schedule.cycles, progress), schedule.floor);
    case ScheduleShape::kLinear: {
      // Counted from the end, so that the last steps are exact.
      const double left =
          progress_in(schedule.total_steps, step, schedule.total_steps - schedule.warmup_steps);
      return lifted(std::max(0.0, left), schedule.floor);
    }
    case ScheduleShape::kConstant: return 1.0;
    case ScheduleShape::kWsd: return wsd_factor(schedule, step);
  }
  return 1.0;
}

int64_t warmup_steps_from_ratio(double ratio, int64_t total_steps) {
  return static_cast<int64_t>(std::floor(ratio * static_cast<double>(total_steps)));
}

}  // namespace percheron
