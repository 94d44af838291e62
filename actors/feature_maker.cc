#include "actors/feature_maker.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "actors/batch_source.h"
#include "base/log.h"
#include "data/epoch_plan.h"

namespace percheron {

TargetFeatureMaker::TargetFeatureMaker(Target& target, FeatureCache* cache, Quarantine& quarantine,
                                       FeatureShape shape, std::string fingerprint)
    : target_(target),
      cache_(cache),
      quarantine_(quarantine),
      shape_(shape),
      fingerprint_(std::move(fingerprint)) {}

Result<Features> TargetFeatureMaker::capture_once(Context& context, const MicroBatch& batch) {
  PERCHERON_ASSIGN_OR_RETURN(
      Features features, capture_features(context, target_, batch, shape_.dtype,
                                          shape_.has_top1 ? Top1::kYes : Top1::kNo));
  features.fingerprint = fingerprint_;
  return features;
}

Result<Features> TargetFeatureMaker::capture(Context& context, const MicroBatch& batch) {
  Result<Features> features = capture_once(context, batch);
  if (features.ok() || features.status().code() != StatusCode::kDataLoss) return features;
  return capture_sound(context, batch);
}

Result<Features> TargetFeatureMaker::capture_sound(Context& context, const MicroBatch& batch) {
  std::vector<int32_t> sound;
  for (int32_t d = 0; d < static_cast<int32_t>(batch.documents()); ++d) {
    const Result<Features> alone =
        capture_once(context, select_documents(batch, std::span<const int32_t>(&d, 1)));
    if (alone.ok()) {
      sound.push_back(d);
    } else if (alone.status().code() == StatusCode::kDataLoss) {
      PERCHERON_RETURN_IF_ERROR(
          quarantine_.add(batch.sample_ids[static_cast<size_t>(d)], alone.status().message()));
    } else {
      return alone.status();
    }
  }
  if (sound.empty()) return blank(batch);
  return capture_once(context, select_documents(batch, sound));
}

Features TargetFeatureMaker::blank(const MicroBatch& batch) const {
  Features features;
  features.batch = batch;
  std::fill(features.batch.loss_mask.begin(), features.batch.loss_mask.end(), uint8_t{0});
  features.dtype = shape_.dtype;
  features.slots = shape_.slots;
  features.hidden_size = shape_.hidden_size;
  features.has_last = shape_.has_last;
  features.hidden_states.resize(shape_.hidden_bytes(batch.tokens()));
  if (shape_.has_top1) features.top1.assign(batch.token_ids.size(), -1);
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
