#include "actors/policy/epoch_termination.h"

#include <utility>

#include "base/check.h"

namespace percheron {

EpochTermination::EpochTermination(int64_t steps, std::set<int> targets)
    : steps_(steps), working_(std::move(targets)) {}

void EpochTermination::settled() {
  PERCHERON_CHECK(leases_ > 0, "a lease is settled once");
  --leases_;
}

void EpochTermination::step_committed() {
  PERCHERON_CHECK(committed_ < steps_, "an epoch has no more steps than planned");
  ++committed_;
}

bool EpochTermination::over() const {
  return exhausted_ && working_.empty() && leases_ == 0 && committed_ == steps_;
}

bool EpochTermination::report_end() {
  if (reported_ || !over()) return false;
  reported_ = true;
  return true;
}

}  // namespace percheron
