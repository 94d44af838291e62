#include "data/plan_statistics.h"

#include <algorithm>

#include "base/check.h"

namespace percheron {
namespace {

double pairs(int64_t members) {
  return static_cast<double>(members) * static_cast<double>(members - 1) / 2;
}

}  // namespace

void Spread::add(double value) {
  least_ = count_ == 0 ? value : std::min(least_, value);
  most_ = count_ == 0 ? value : std::max(most_, value);
  sum_ += value;
  ++count_;
}

std::vector<int32_t> lengths_by_position(const SampleSelection& selection) {
  std::vector<int32_t> lengths(selection.samples.empty() ? 0
                                                         : size_t{selection.samples.back()} + 1);
  for (size_t i = 0; i < selection.samples.size(); ++i)
    lengths[selection.samples[i]] = selection.lengths[i];
  return lengths;
}

double met_again(const EpochPlan& before, const EpochPlan& after) {
  std::vector<uint32_t> batch_before;  // by sample
  double all = 0;
  for (int64_t b = 0; b < before.micro_batches(); ++b) {
    const auto samples = before.samples(b);
    all += pairs(static_cast<int64_t>(samples.size()));
    for (const uint32_t sample : samples) {
      if (batch_before.size() <= sample) batch_before.resize(size_t{sample} + 1);
      batch_before[sample] = static_cast<uint32_t>(b);
    }
  }
  if (all == 0) return 0;
  double again = 0;
  std::vector<uint32_t> origins;
  for (int64_t b = 0; b < after.micro_batches(); ++b) {
    origins.clear();
    for (const uint32_t sample : after.samples(b)) {
      PERCHERON_CHECK(sample < batch_before.size(), "both epochs have the same samples");
      origins.push_back(batch_before[sample]);
    }
    std::sort(origins.begin(), origins.end());
    for (auto first = origins.begin(); first != origins.end();) {
      const auto end = std::upper_bound(first, origins.end(), *first);
      again += pairs(end - first);
      first = end;
    }
  }
  return again / all;
}

double length_mix(const EpochPlan& plan, std::span<const int32_t> lengths,
                  int64_t micro_batches_per_step) {
  double samples = 0, sum = 0, squares = 0;
  double between = 0;  // sum over steps of samples times squared mean
  for (int64_t first = 0; first < plan.micro_batches(); first += micro_batches_per_step) {
    const int64_t end = std::min(first + micro_batches_per_step, plan.micro_batches());
    double step_samples = 0, step_sum = 0;
    for (int64_t b = first; b < end; ++b) {
      for (const uint32_t sample : plan.samples(b)) {
        const double length = lengths[sample];
        step_sum += length;
        squares += length * length;
        ++step_samples;
      }
    }
    samples += step_samples;
    sum += step_sum;
    between += step_sum * step_sum / step_samples;
  }
  const double total = squares - sum * sum / samples;
  if (!(total > 0)) return 1;
  return std::clamp((squares - between) / total, 0.0, 1.0);
}

std::vector<double> mean_lengths(const EpochPlan& plan, std::span<const int32_t> lengths,
                                 size_t parts) {
  std::vector<double> means;
  const auto count = static_cast<int64_t>(parts);
  for (int64_t part = 0; part < count; ++part) {
    double sum = 0, samples = 0;
    const int64_t end = (part + 1) * plan.micro_batches() / count;
    for (int64_t b = part * plan.micro_batches() / count; b < end; ++b) {
      for (const uint32_t sample : plan.samples(b)) {
        sum += lengths[sample];
        ++samples;
      }
    }
    if (samples > 0) means.push_back(sum / samples);
  }
  return means;
}

std::vector<uint32_t> buckets_of(const EpochPlan& plan, std::span<const int64_t> bounds) {
  std::vector<uint32_t> buckets(static_cast<size_t>(plan.micro_batches()));
  for (int64_t b = 0; b < plan.micro_batches(); ++b) {
    const int64_t longest = plan.tokens(b) / static_cast<int64_t>(plan.samples(b).size());
    const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), longest);
    PERCHERON_CHECK(bucket != bounds.end(), "the plan was made with other bounds");
    buckets[static_cast<size_t>(b)] = static_cast<uint32_t>(bucket - bounds.begin());
  }
  return buckets;
}

}  // namespace percheron
