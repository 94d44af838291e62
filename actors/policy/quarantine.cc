#include "actors/policy/quarantine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace percheron {
namespace {

std::string line_of(const Quarantine::Sample& sample) {
  return fmt::format("{}sample {} is set aside: {}",
                     sample.set == SampleSet::kHeldOut ? "held-out " : "", sample.sample,
                     sample.reason);
}

}  // namespace

Quarantine::Quarantine(int64_t samples, double share_max)
    : samples_(samples),
      share_max_(share_max),
      samples_max_(
          std::max<int64_t>(1, static_cast<int64_t>(share_max * static_cast<double>(samples)))) {}

Status Quarantine::add(SampleSet set, uint64_t sample, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (reasons_.emplace(std::pair(set, sample), reason).second) {
    news_.push_back({set, sample, reason});
    if (first_.empty()) first_ = line_of(news_.back());
  }
  const int64_t count = static_cast<int64_t>(reasons_.size());
  if (count <= samples_max_) return ok_status();
  return data_loss(fmt::format("{} of {} samples are set aside, more than {:.0f} %; the first: {}",
                               count, samples_, 100 * share_max_, first_));
}

int64_t Quarantine::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(reasons_.size());
}

std::vector<Quarantine::Sample> Quarantine::take_new_samples() {
  const std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

std::vector<std::string> Quarantine::take_news() {
  std::vector<std::string> lines;
  for (const Sample& sample : take_new_samples()) lines.push_back(line_of(sample));
  return lines;
}

}  // namespace percheron
