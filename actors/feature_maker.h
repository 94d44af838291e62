#pragma once

#include <memory>
#include <optional>
#include <string>

#include "actors/policy/quarantine.h"
#include "base/status.h"
#include "data/feature_cache.h"
#include "data/features.h"
#include "kernels/device.h"
#include "model/target.h"

namespace percheron {

/// A micro-batch's features, and how many of its tokens the target ran over for them: the rest came
/// from a cache.
struct MadeFeatures {
  FeaturesPtr features;
  int64_t computed_tokens = 0;
};

/// Makes the features of micro-batches; what a target actor runs on its device's worker.
class FeatureMaker {
 public:
  virtual ~FeatureMaker() = default;
  virtual Result<MadeFeatures> make(Context& context, MicroBatch batch) = 0;
};

/// Runs the target over the documents that the cache lacks and takes the rest from the cache. A
/// sample of which a state is not finite is set aside and left out of its micro-batch.
class TargetFeatureMaker final : public FeatureMaker {
 public:
  /// `target` lives on the device whose worker calls make(); its layers are loaded when first
  /// needed. `cache` may be null. All are borrowed.
  TargetFeatureMaker(Target& target, FeatureCache* cache, Quarantine& quarantine,
                     FeatureShape shape, std::string fingerprint);

  /// kDataLoss when too many samples are set aside.
  Result<MadeFeatures> make(Context& context, MicroBatch batch) override;

 private:
  /// The features of what can be captured of `batch`; none when every document fails.
  Result<std::optional<Features>> capture(Context& context, const MicroBatch& batch);
  Result<Features> capture_once(Context& context, const MicroBatch& batch);
  /// What is left of `batch` without the documents that fail alone.
  Result<std::optional<Features>> capture_sound(Context& context, const MicroBatch& batch);
  /// Captures every document; `cached`: keeps them for later epochs.
  Result<MadeFeatures> make_whole(Context& context, const MicroBatch& batch, bool cached);
  /// Features of rows that teach nothing, where no document is left.
  Features blank(const MicroBatch& batch) const;
  void keep(const Features& features);

  Target& target_;
  FeatureCache* cache_;
  Quarantine& quarantine_;
  FeatureShape shape_;
  std::string fingerprint_;
};

}  // namespace percheron
