#pragma once

#include <cstdint>

#include "base/status.h"

namespace percheron {

enum class ScheduleShape { kCosine, kLinear, kConstant, kWsd };

/// The first steps' factor, W being the number of warm-up steps and s the step counted from 0.
enum class Warmup {
  kFromZero,  // s / W, as transformers: the first step has rate 0
  kFromOne,   // (s + 1) / W, as SpecForge, reaching 1 at s = W - 1, without its overshoot at s = W
};

/// What the last phase of ScheduleShape::kWsd follows.
enum class WsdDecay { kCosine, kLinear };

/// What steps past the end get.
enum class PastEnd {
  kHold,     // the rate of the end: what training uses
  kFormula,  // the formula as transformers evaluates it; a cosine rises again
};

/// A learning-rate schedule: every base rate is multiplied by schedule_factor(). After the warm-up:
/// kCosine   floor + (1 - floor) (1 + cos(2 pi cycles t)) / 2
/// kLinear   floor + (1 - floor) (1 - t)
/// kConstant 1
/// kWsd      1, then over the last `decay_steps` a cosine or linear fall to `floor`
/// with t = (s - W) / (total_steps - W). Source: transformers' optimization.py.
struct Schedule {
  ScheduleShape shape = ScheduleShape::kCosine;
  Warmup warmup = Warmup::kFromOne;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double cycles = 0.5;
  double floor =
      0;  // the lowest factor; with kWsd and Warmup::kFromZero the warm-up starts there too
  WsdDecay decay = WsdDecay::kCosine;
  int64_t decay_steps = 0;  // kWsd
  PastEnd past_end = PastEnd::kHold;
};

/// kInvalidArgument names the field that is out of range and its value.
Status check_schedule(const Schedule& schedule);

/// The factor of the optimizer step with index `step`, counted from 0.
double schedule_factor(const Schedule& schedule, int64_t step);

/// ratio * total_steps rounded down, as SpecForge and speculators; transformers' trainer rounds up.
int64_t warmup_steps_from_ratio(double ratio, int64_t total_steps);

}  // namespace percheron
