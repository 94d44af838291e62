#include "actors/policy/run_schedule.h"

#include <algorithm>
#include <utility>

namespace percheron {

EvaluationPolicy::EvaluationPolicy(bool enabled, int64_t every_steps, std::vector<int64_t> at_steps,
                                   int64_t steps_total)
    : enabled_(enabled),
      every_steps_(every_steps),
      at_steps_(std::move(at_steps)),
      steps_total_(steps_total) {}

bool EvaluationPolicy::due(int64_t step) const {
  if (!enabled_) return false;
  if (step == 0 || step == steps_total_) return true;
  if (every_steps_ > 0 && step % every_steps_ == 0) return true;
  return std::find(at_steps_.begin(), at_steps_.end(), step) != at_steps_.end();
}

CheckpointPolicy::CheckpointPolicy(int64_t every_steps, int64_t steps_total)
    : every_steps_(every_steps), steps_total_(steps_total) {}

bool CheckpointPolicy::due(int64_t step, bool evaluated) const {
  if (step == 0 || step == steps_total_ || evaluated) return true;
  return every_steps_ > 0 && step % every_steps_ == 0;
}

bool BestPolicy::better(int64_t step, double acceptance) {
  if (step_ && acceptance <= acceptance_) return false;
  step_ = step;
  acceptance_ = acceptance;
  return true;
}

void BestPolicy::restore(int64_t step, double acceptance) {
  step_ = step;
  acceptance_ = acceptance;
}

}  // namespace percheron
