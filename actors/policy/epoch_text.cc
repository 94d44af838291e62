#include "actors/policy/epoch_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/counted.h"

namespace percheron {

std::string epoch_end_text(const StepPlan& plan, int64_t epoch) {
  const int64_t whole = plan.first_step(epoch + 1) - plan.first_step(epoch);
  const int64_t reached = std::min(plan.steps() - plan.first_step(epoch), whole);
  if (reached == whole) {
    return fmt::format("epoch {} of {} is done: {}", epoch + 1, plan.epochs(),
                       counted(whole, "step"));
  }
  return fmt::format("epoch {} of {} ends after {} of its {}: train.steps is {}", epoch + 1,
                     plan.epochs(), reached, counted(whole, "step"), plan.steps());
}

}  // namespace percheron
