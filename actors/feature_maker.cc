#include "actors/feature_maker.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "actors/batch_source.h"
#include "base/log.h"
#include "data/epoch_plan.h"

namespace percheron {
namespace {

// `batch` without those of its documents `missing` that `fresh` lacks, because they failed.
MicroBatch without_failed(const MicroBatch& batch, std::span<const int32_t> missing,
                          const std::optional<Features>& fresh) {
  std::set<uint64_t> made;
  if (fresh) made.insert(fresh->batch.sample_ids.begin(), fresh->batch.sample_ids.end());
  std::vector<int32_t> left;
  for (int32_t d = 0; d < static_cast<int32_t>(batch.documents()); ++d) {
    const bool captured = std::binary_search(missing.begin(), missing.end(), d);
    if (!captured || made.count(batch.sample_ids[static_cast<size_t>(d)]) != 0) left.push_back(d);
  }
  return select_documents(batch, left);
}

}  // namespace

TargetFeatureMaker::TargetFeatureMaker(Target& target, FeatureCache* cache, Quarantine& quarantine,
                                       FeatureShape shape, std::string fingerprint)
    : target_(target),
      cache_(cache),
      quarantine_(quarantine),
      shape_(shape),
      fingerprint_(std::move(fingerprint)) {}

Result<Features> TargetFeatureMaker::capture_once(Context& context, const MicroBatch& batch) {
  PERCHERON_ASSIGN_OR_RETURN(Features features,
                             capture_features(context, target_, batch, shape_.dtype,
                                              shape_.has_top1 ? Top1::kYes : Top1::kNo));
  features.fingerprint = fingerprint_;
  return features;
}

Result<std::optional<Features>> TargetFeatureMaker::capture(Context& context,
                                                            const MicroBatch& batch) {
  PERCHERON_RETURN_IF_ERROR(target_.load_layers(context).with_context("loading the target"));
  Result<Features> features = capture_once(context, batch);
  if (features.ok()) return std::optional<Features>(std::move(features).value());
  if (features.status().code() != StatusCode::kDataLoss) return features.status();
  return capture_sound(context, batch);
}

Result<std::optional<Features>> TargetFeatureMaker::capture_sound(Context& context,
                                                                  const MicroBatch& batch) {
  const SampleSet set =
      batch.id.epoch == kHeldOutEpoch ? SampleSet::kHeldOut : SampleSet::kTraining;
  std::vector<int32_t> sound;
  for (int32_t d = 0; d < static_cast<int32_t>(batch.documents()); ++d) {
    const Result<Features> alone =
        capture_once(context, select_documents(batch, std::span<const int32_t>(&d, 1)));
    if (alone.ok()) {
      sound.push_back(d);
    } else if (alone.status().code() == StatusCode::kDataLoss) {
      PERCHERON_RETURN_IF_ERROR(
          quarantine_.add(set, batch.sample_ids[static_cast<size_t>(d)], alone.status().message()));
    } else {
      return alone.status();
    }
  }
  if (sound.empty()) return std::optional<Features>();
  PERCHERON_ASSIGN_OR_RETURN(Features features,
                             capture_once(context, select_documents(batch, sound)));
  return std::optional<Features>(std::move(features));
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

void TargetFeatureMaker::keep(const Features& features) {
  const Status kept = cache_->insert(features);
  if (!kept.ok()) log_warning("features are not kept for later epochs: {}", kept.message());
}

Result<MadeFeatures> TargetFeatureMaker::make_whole(Context& context, const MicroBatch& batch,
                                                    bool cached) {
  PERCHERON_ASSIGN_OR_RETURN(std::optional<Features> features, capture(context, batch));
  // Blank rows stand for nothing, so they never enter the cache.
  if (!features) return MadeFeatures{std::make_shared<const Features>(blank(batch)), 0};
  if (cached) keep(*features);
  return MadeFeatures{std::make_shared<const Features>(*std::move(features)), batch.tokens()};
}

Result<MadeFeatures> TargetFeatureMaker::make(Context& context, MicroBatch batch) {
  // Held-out samples are numbered apart from the training samples that the cache knows.
  const bool cached = cache_ && batch.id.epoch != kHeldOutEpoch;
  if (!cached) return make_whole(context, batch, false);
  const std::vector<int32_t> missing = cache_->missing_documents(batch);
  if (static_cast<int64_t>(missing.size()) == batch.documents()) {
    return make_whole(context, batch, true);
  }
  std::optional<Features> fresh;
  if (!missing.empty()) {
    PERCHERON_ASSIGN_OR_RETURN(fresh, capture(context, select_documents(batch, missing)));
    if (fresh) keep(*fresh);
    batch = without_failed(batch, missing, fresh);
  }
  FeaturesPtr features = cache_->assemble(batch, fresh ? &*fresh : nullptr);
  if (features) return MadeFeatures{std::move(features), fresh ? fresh->batch.tokens() : 0};
  // A record failed its checksum: make the whole batch anew.
  return make_whole(context, batch, true);
}

}  // namespace percheron
