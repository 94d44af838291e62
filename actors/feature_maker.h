#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "data/feature_cache.h"
#include "data/features.h"
#include "kernels/device.h"
#include "model/target.h"

namespace percheron {

/// Makes the features of micro-batches; what a target actor runs on its device's worker.
class FeatureMaker {
 public:
  virtual ~FeatureMaker() = default;
  virtual Result<FeaturesPtr> make(Context& context, MicroBatch batch) = 0;
};

/// Where the features of earlier epochs are kept, and how much was taken from there.
enum class CacheUse { kReadAndFill, kBypass };

/// Runs the target over the documents that the cache lacks and takes the rest from the cache.
class TargetFeatureMaker final : public FeatureMaker {
 public:
  /// `target` lives on the device whose worker calls make(); `cache` may be null. Both are
  /// borrowed.
  TargetFeatureMaker(Target& target, FeatureCache* cache, FeatureShape shape,
                     std::string fingerprint);

  /// kDataLoss, as capture_features(), for a state that is not finite.
  Result<FeaturesPtr> make(Context& context, MicroBatch batch) override;

 private:
  Result<Features> capture(Context& context, const MicroBatch& batch);

  Target& target_;
  FeatureCache* cache_;
  FeatureShape shape_;
  std::string fingerprint_;
};

}  // namespace percheron
