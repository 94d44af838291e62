#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/policy/quarantine.h"
#include "base/status.h"
#include "data/feature_cache.h"
#include "data/features.h"
#include "kernels/device.h"
#include "model/capture_pipeline.h"
#include "model/target.h"

namespace percheron {

/// A micro-batch's features, and how many of its tokens the target ran over for them: the rest came
/// from a cache.
struct MadeFeatures {
  FeaturesPtr features;
  int64_t computed_tokens = 0;
};

/// The features of a micro-batch of which the device's part is in its stream.
class FeaturesUnderWay {
 public:
  virtual ~FeaturesUnderWay() = default;
  /// Waits until the device has run the pass; an error of it is for finish(). Any thread.
  virtual void wait_pass() = 0;
  /// Waits for the features, once. None if the device must do more for them, by again(). Any
  /// thread.
  virtual Result<std::optional<MadeFeatures>> finish() = 0;
  /// On the device's worker, after finish() gave none: makes them, whatever it takes.
  virtual Result<MadeFeatures> again(Context& context) = 0;
};

/// Makes the features of micro-batches; what a target actor runs on its device's worker.
class FeatureMaker {
 public:
  virtual ~FeatureMaker() = default;
  /// Puts what the device is to do into its stream. CapturePipeline::kPassesMax may be under way at
  /// a time; all are gone before the maker.
  virtual Result<std::unique_ptr<FeaturesUnderWay>> begin(Context& context, MicroBatch batch) = 0;
  /// From the beginning to the end, on the device's worker.
  Result<MadeFeatures> make(Context& context, MicroBatch batch);
};

/// Runs the target over the documents that the cache lacks and takes the rest from the cache. A
/// sample of which a state is not finite is set aside and left out of its micro-batch: then its
/// documents run one by one.
class TargetFeatureMaker final : public FeatureMaker {
 public:
  /// `target` lives on the device whose worker calls begin(); its layers are loaded when first
  /// needed. `cache` may be null. All are borrowed. `tokens_max`: of a micro-batch to come.
  TargetFeatureMaker(Target& target, FeatureCache* cache, Quarantine& quarantine,
                     FeatureShape shape, std::string fingerprint, int64_t tokens_max);

  Result<std::unique_ptr<FeaturesUnderWay>> begin(Context& context, MicroBatch batch) override;

  /// How often buffers of captured states had to grow.
  int64_t growths() const { return pipeline_.growths(); }

 private:
  class UnderWay;
  using Pending = CapturePipeline::Pending;

  /// Puts the pass over all of `batch` into the stream, once the target's layers are loaded.
  Result<Pending> begin_pass(Context& context, const MicroBatch& batch);
  Result<Features> mark(Result<Features> captured) const;
  /// The features of what can be captured of `batch`, none when every document fails: of all of it
  /// if possible, else without the documents that fail alone. kDataLoss when too many samples are
  /// set aside.
  Result<std::optional<Features>> capture(Context& context, Pending& pending,
                                          const MicroBatch& batch);
  Result<std::optional<Features>> capture_sound(Context& context, Pending& pending,
                                                const MicroBatch& batch);
  /// Features of rows that teach nothing, where no document is left.
  Features blank(const MicroBatch& batch) const;
  void keep(const Features& features);

  Target& target_;
  FeatureCache* cache_;
  Quarantine& quarantine_;
  FeatureShape shape_;
  std::string fingerprint_;
  CapturePipeline pipeline_;
};

}  // namespace percheron
