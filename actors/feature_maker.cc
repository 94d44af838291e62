#include "actors/feature_maker.h"

#include <utility>
#include <vector>

#include "actors/batch_source.h"
#include "base/log.h"
#include "data/epoch_plan.h"

namespace percheron {

TargetFeatureMaker::TargetFeatureMaker(Target& target, FeatureCache* cache, FeatureShape shape,
                                       std::string fingerprint)
    : target_(target), cache_(cache), shape_(shape), fingerprint_(std::move(fingerprint)) {}

Result<Features> TargetFeatureMaker::capture(Context& context, const MicroBatch& batch) {
  PERCHERON_ASSIGN_OR_RETURN(
      Features features, capture_features(context, target_, batch, shape_.dtype, shape_.has_top1));
  features.fingerprint = fingerprint_;
  return features;
}

Result<FeaturesPtr> TargetFeatureMaker::make(Context& context, MicroBatch batch) {
  // Held-out samples are numbered apart from the training samples that the cache knows.
  const bool cached = cache_ && batch.id.epoch != kHeldOutEpoch;
  std::vector<int32_t> missing;
  if (cached) missing = cache_->missing_documents(batch);
  if (!cached || static_cast<int64_t>(missing.size()) == batch.documents()) {
    PERCHERON_ASSIGN_OR_RETURN(Features features, capture(context, batch));
    if (cached) {
      const Status kept = cache_->insert(features);
      if (!kept.ok()) log_warning("features are not kept for later epochs: {}", kept.message());
    }
    return std::make_shared<const Features>(std::move(features));
  }
  Features fresh;
  if (!missing.empty()) {
    PERCHERON_ASSIGN_OR_RETURN(fresh, capture(context, select_documents(batch, missing)));
    const Status kept = cache_->insert(fresh);
    if (!kept.ok()) log_warning("features are not kept for later epochs: {}", kept.message());
  }
  FeaturesPtr features = cache_->assemble(batch, missing.empty() ? nullptr : &fresh);
  if (features) return features;
  // A record failed its checksum: make the whole batch anew.
  PERCHERON_ASSIGN_OR_RETURN(Features again, capture(context, batch));
  return std::make_shared<const Features>(std::move(again));
}

}  // namespace percheron
