#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace percheron {

/// Training and held-out samples are numbered apart.
enum class SampleSet { kTraining, kHeldOut };

/// Samples whose features could not be made, with the reason. A run goes on without them until they
/// are more than a set share of its data: then something else is wrong. Thread-safe.
class Quarantine {
 public:
  /// Largest share of a run's samples that may be set aside; always at least one sample.
  static constexpr double kShareMax = 0.01;

  /// `samples`: of the run, the held-out ones included. `share_max`: of them, 1 for no limit.
  explicit Quarantine(int64_t samples, double share_max = kShareMax);

  /// Sets a sample aside; a repeated one counts once. kDataLoss, with the first reason, when these
  /// are too many.
  Status add(SampleSet set, uint64_t sample, const std::string& reason);
  int64_t count() const;
  struct Sample {
    SampleSet set = SampleSet::kTraining;
    uint64_t sample = 0;
    std::string reason;
  };
  /// The samples that were added since the last call of either of these.
  std::vector<Sample> take_new_samples();
  /// One line for each of them.
  std::vector<std::string> take_news();

 private:
  const int64_t samples_;
  const double share_max_;
  const int64_t samples_max_;
  mutable std::mutex mutex_;
  std::map<std::pair<SampleSet, uint64_t>, std::string> reasons_;
  std::string first_;  // the first line
  std::vector<Sample> news_;
};

}  // namespace percheron
