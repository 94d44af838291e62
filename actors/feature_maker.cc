#include "actors/feature_maker.h"

#include <algorithm>
#include <numeric>
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

Result<MadeFeatures> FeatureMaker::make(Context& context, MicroBatch batch) {
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<FeaturesUnderWay> under_way,
                             begin(context, std::move(batch)));
  PERCHERON_ASSIGN_OR_RETURN(std::optional<MadeFeatures> made, under_way->finish());
  return made ? Result<MadeFeatures>(*std::move(made)) : under_way->again(context);
}

/// Of a micro-batch: those of its documents that the cache lacks, with a pass, and those that it
/// has.
class TargetFeatureMaker::UnderWay final : public FeaturesUnderWay {
 public:
  /// `missing`: documents of `batch` that the pass runs over. `cached`: the cache takes part.
  UnderWay(TargetFeatureMaker& maker, MicroBatch batch, std::vector<int32_t> missing, bool cached,
           std::optional<Pending> pending)
      : maker_(maker),
        batch_(std::move(batch)),
        missing_(std::move(missing)),
        cached_(cached),
        pending_(std::move(pending)) {}

  void wait_pass() override {
    if (pending_) (void)pending_->wait_pass();
  }

  Result<std::optional<MadeFeatures>> finish() override {
    if (!pending_) return settle(std::nullopt);
    Result<Features> fresh = maker_.mark(pending_->finish());
    if (fresh.ok()) return settle(std::move(fresh).value());
    if (fresh.status().code() != StatusCode::kDataLoss) return fresh.status();
    not_finite_ = true;
    return std::optional<MadeFeatures>();
  }

  Result<MadeFeatures> again(Context& context) override {
    if (not_finite_) {
      PERCHERON_ASSIGN_OR_RETURN(std::optional<Features> sound,
                                 maker_.capture_sound(context, *pending_, missing_part()));
      PERCHERON_ASSIGN_OR_RETURN(std::optional<MadeFeatures> made, settle(std::move(sound)));
      if (made) return *std::move(made);
    }
    // A record failed its checksum: make the whole batch anew.
    if (!pending_) {
      PERCHERON_ASSIGN_OR_RETURN(Pending pending, maker_.begin_pass(context, batch_));
      pending_.emplace(std::move(pending));
      Result<Features> captured = maker_.mark(pending_->finish());
      if (captured.ok()) return whole(std::move(captured).value());
      if (captured.status().code() != StatusCode::kDataLoss) return captured.status();
      PERCHERON_ASSIGN_OR_RETURN(std::optional<Features> sound,
                                 maker_.capture_sound(context, *pending_, batch_));
      return whole(std::move(sound));
    }
    PERCHERON_ASSIGN_OR_RETURN(std::optional<Features> captured,
                               maker_.capture(context, *pending_, batch_));
    return whole(std::move(captured));
  }

 private:
  bool is_whole() const { return static_cast<int64_t>(missing_.size()) == batch_.documents(); }
  MicroBatch missing_part() const {
    return is_whole() ? batch_ : select_documents(batch_, missing_);
  }

  /// With what was captured of missing_part(), none where all of it failed.
  Result<std::optional<MadeFeatures>> settle(std::optional<Features> fresh) {
    if (is_whole()) return std::optional<MadeFeatures>(whole(std::move(fresh)));
    MicroBatch batch = batch_;
    if (!missing_.empty()) {
      if (fresh) maker_.keep(*fresh);
      batch = without_failed(batch_, missing_, fresh);
    }
    FeaturesPtr features = maker_.cache_->assemble(batch, fresh ? &*fresh : nullptr);
    if (!features) return std::optional<MadeFeatures>();
    return std::optional(MadeFeatures{std::move(features), fresh ? fresh->batch.tokens() : 0});
  }

  MadeFeatures whole(std::optional<Features> features) {
    // Blank rows stand for nothing, so they never enter the cache.
    if (!features) return {std::make_shared<const Features>(maker_.blank(batch_)), 0};
    if (cached_) maker_.keep(*features);
    return {std::make_shared<const Features>(*std::move(features)), batch_.tokens()};
  }

  TargetFeatureMaker& maker_;
  const MicroBatch batch_;
  const std::vector<int32_t> missing_;
  const bool cached_;
  std::optional<Pending> pending_;  // none where the cache has everything
  bool not_finite_ = false;
};

TargetFeatureMaker::TargetFeatureMaker(Target& target, FeatureCache* cache, Quarantine& quarantine,
                                       FeatureShape shape, std::string fingerprint,
                                       int64_t tokens_max)
    : target_(target),
      cache_(cache),
      quarantine_(quarantine),
      shape_(shape),
      fingerprint_(std::move(fingerprint)),
      pipeline_(target, shape.dtype, shape.has_top1 ? Top1::kYes : Top1::kNo, tokens_max) {}

Result<CapturePipeline::Pending> TargetFeatureMaker::begin_pass(Context& context,
                                                                const MicroBatch& batch) {
  PERCHERON_RETURN_IF_ERROR(target_.load_layers(context).with_context("loading the target"));
  return pipeline_.begin(context, batch);
}

Result<Features> TargetFeatureMaker::mark(Result<Features> captured) const {
  if (captured.ok()) captured->fingerprint = fingerprint_;
  return captured;
}

Result<std::optional<Features>> TargetFeatureMaker::capture(Context& context, Pending& pending,
                                                            const MicroBatch& batch) {
  Result<Features> features = mark(pending.capture(context, batch));
  if (features.ok()) return std::optional<Features>(std::move(features).value());
  if (features.status().code() != StatusCode::kDataLoss) return features.status();
  return capture_sound(context, pending, batch);
}

Result<std::optional<Features>> TargetFeatureMaker::capture_sound(Context& context,
                                                                  Pending& pending,
                                                                  const MicroBatch& batch) {
  const SampleSet set =
      batch.id.epoch == kHeldOutEpoch ? SampleSet::kHeldOut : SampleSet::kTraining;
  std::vector<int32_t> sound;
  for (int32_t d = 0; d < static_cast<int32_t>(batch.documents()); ++d) {
    const Result<Features> alone =
        pending.capture(context, select_documents(batch, std::span<const int32_t>(&d, 1)));
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
                             mark(pending.capture(context, select_documents(batch, sound))));
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

Result<std::unique_ptr<FeaturesUnderWay>> TargetFeatureMaker::begin(Context& context,
                                                                    MicroBatch batch) {
  // Held-out samples are numbered apart from the training samples that the cache knows.
  const bool cached = cache_ != nullptr && batch.id.epoch != kHeldOutEpoch;
  std::vector<int32_t> missing;
  if (cached) {
    missing = cache_->missing_documents(batch);
  } else {
    missing.resize(static_cast<size_t>(batch.documents()));
    std::iota(missing.begin(), missing.end(), 0);
  }
  std::optional<Pending> pending;
  if (!missing.empty()) {
    const bool whole = static_cast<int64_t>(missing.size()) == batch.documents();
    PERCHERON_ASSIGN_OR_RETURN(
        Pending begun, begin_pass(context, whole ? batch : select_documents(batch, missing)));
    pending.emplace(std::move(begun));
  }
  return std::unique_ptr<FeaturesUnderWay>(std::make_unique<UnderWay>(
      *this, std::move(batch), std::move(missing), cached, std::move(pending)));
}

}  // namespace percheron
