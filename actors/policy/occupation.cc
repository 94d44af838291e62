#include "actors/policy/occupation.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace percheron {
namespace {

constexpr std::array<std::string_view, kOccupations> kNames = {
    "idle",     "compute", "device", "room",       "work",      "features",
    "step_end", "reduce",  "update", "evaluation", "checkpoint"};

}  // namespace

std::string_view occupation_name(Occupation occupation) {
  return kNames[static_cast<size_t>(occupation)];
}

bool is_waiting(Occupation occupation) {
  switch (occupation) {
    case Occupation::kCompute:
    case Occupation::kReduce:
    case Occupation::kUpdate: return false;
    default: return true;
  }
}

double OccupationSeconds::total() const {
  return std::accumulate(seconds_.begin(), seconds_.end(), 0.0);
}

OccupationSeconds& OccupationSeconds::operator+=(const OccupationSeconds& other) {
  for (size_t i = 0; i < kOccupations; ++i) seconds_[i] += other.seconds_[i];
  return *this;
}

OccupationSeconds OccupationSeconds::operator-(const OccupationSeconds& other) const {
  OccupationSeconds difference;
  for (size_t i = 0; i < kOccupations; ++i) {
    difference.seconds_[i] = seconds_[i] - other.seconds_[i];
  }
  return difference;
}

void OccupationClock::enter(Occupation next, double now) {
  PERCHERON_CHECK(!in_job_, "a job ends before its worker does something else");
  seconds_[occupation_] += std::max(0.0, now - since_);
  occupation_ = next;
  since_ = now;
}

void OccupationClock::begin_job(double now) {
  enter(Occupation::kCompute, now);
  in_job_ = true;
}

void OccupationClock::end_job(double seconds, double fetch_seconds, Occupation reason, double now) {
  if (!in_job_) return;  // Its worker was lost and is known anew.
  const double held = std::max(0.0, now - since_);
  const double computed = std::clamp(seconds, 0.0, held);
  seconds_[Occupation::kCompute] += computed;
  const double fetched = std::clamp(fetch_seconds, 0.0, held - computed);
  seconds_[Occupation::kFeatures] += fetched;
  seconds_[reason] += held - computed - fetched;
  in_job_ = false;
  occupation_ = Occupation::kIdle;
  since_ = now;
}

OccupationSeconds OccupationClock::seconds(double now) const {
  OccupationSeconds seconds = seconds_;
  if (!in_job_) seconds[occupation_] += std::max(0.0, now - since_);
  return seconds;
}

}  // namespace percheron
