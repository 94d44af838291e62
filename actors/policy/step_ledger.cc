#include "actors/policy/step_ledger.h"

#include <algorithm>

#include "base/check.h"

namespace percheron {

StepLedger::StepLedger(std::vector<int> members, int64_t step)
    : members_(std::move(members)), step_(step) {
  std::sort(members_.begin(), members_.end());
  PERCHERON_CHECK(!members_.empty(), "a run has at least one trainer");
}

bool StepLedger::is_member(int number) const {
  return std::binary_search(members_.begin(), members_.end(), number);
}

bool StepLedger::refuse_unless(bool wanted) {
  if (!wanted) ++stale_;
  return wanted;
}

bool StepLedger::computed(int64_t step, int64_t membership) {
  if (!refuse_unless(phase_ == Phase::kComputing && step == step_ && membership == membership_)) {
    return false;
  }
  phase_ = Phase::kReducing;
  reported_.clear();
  return true;
}

bool StepLedger::reduced(int member, int64_t step, int64_t membership) {
  if (!refuse_unless(is_member(member) && phase_ == Phase::kReducing && step == step_ &&
                     membership == membership_ && reported_.count(member) == 0)) {
    return false;
  }
  reported_.insert(member);
  return all_reported();
}

void StepLedger::commit() {
  PERCHERON_CHECK(phase_ == Phase::kReducing && all_reported(),
                  "a step is committed when every member has reduced it");
  phase_ = Phase::kApplying;
  reported_.clear();
  ++committed_;
}

bool StepLedger::applied(int member, int64_t step) {
  if (!refuse_unless(is_member(member) && phase_ == Phase::kApplying && step == step_ &&
                     reported_.count(member) == 0)) {
    return false;
  }
  reported_.insert(member);
  if (!all_reported()) return false;
  finish_step();
  return true;
}

std::vector<int> StepLedger::missing() const {
  std::vector<int> missing;
  for (int member : members_) {
    if (reported_.count(member) == 0) missing.push_back(member);
  }
  return missing;
}

void StepLedger::finish_step() {
  ++step_;
  phase_ = Phase::kComputing;
  reported_.clear();
}

StepLedger::Loss StepLedger::member_lost(int member) {
  const auto position = std::find(members_.begin(), members_.end(), member);
  if (position == members_.end()) return Loss::kNothing;
  members_.erase(position);
  reported_.erase(member);
  ++membership_;
  if (members_.empty()) return Loss::kNobody;
  if (phase_ == Phase::kApplying) {
    if (!all_reported()) return Loss::kCommitted;
    finish_step();
    return Loss::kStepOver;
  }
  phase_ = Phase::kComputing;
  reported_.clear();
  return Loss::kRecompute;
}

bool StepLedger::member_joined(int member) {
  if (is_member(member) || phase_ != Phase::kComputing) return false;
  members_.push_back(member);
  std::sort(members_.begin(), members_.end());
  ++membership_;
  return true;
}

void StepLedger::restart(int64_t step) {
  PERCHERON_CHECK(members_.empty(), "only without members the run goes back");
  step_ = step;
  phase_ = Phase::kComputing;
  reported_.clear();
}

}  // namespace percheron
