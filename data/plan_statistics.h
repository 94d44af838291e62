#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/epoch_plan.h"

namespace percheron {

/// A number over several seeds.
class Spread {
 public:
  void add(double value);

  int64_t count() const { return count_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  double least() const { return least_; }
  double most() const { return most_; }

 private:
  int64_t count_ = 0;
  double sum_ = 0, least_ = 0, most_ = 0;
};

/// The tokens used of each sample of a data set by its position; 0 for those not selected.
std::vector<int32_t> lengths_by_position(const SampleSelection& selection);

/// The share of the pairs of samples that share a micro-batch of `before` which share one of
/// `after` too; 0 without pairs. Both plans are of one selection.
double met_again(const EpochPlan& before, const EpochPlan& after);

/// How much a step sees of the data set's variety of lengths: the share of the variance of sample
/// lengths that lies inside the steps of `micro_batches_per_step`. 1: every step has the whole mean
/// length; 0: each step has samples of one length only, so that gradients of short and of long
/// samples take turns. Steps of n samples drawn at random have 1 - 1/n. lengths: by position.
double length_mix(const EpochPlan& plan, std::span<const int32_t> lengths,
                  int64_t micro_batches_per_step);

/// The mean length of the samples of each of `parts` equal parts of the epoch.
std::vector<double> mean_lengths(const EpochPlan& plan, std::span<const int32_t> lengths,
                                 size_t parts);

/// The bucket of each micro-batch of a bucketed plan with these upper bounds.
std::vector<uint32_t> buckets_of(const EpochPlan& plan, std::span<const int64_t> bounds);

}  // namespace percheron
