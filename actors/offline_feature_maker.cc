#include "actors/offline_feature_maker.h"

#include <optional>
#include <utility>

#include "actors/batch_source.h"

namespace percheron {
namespace {

/// Features that are there, of some or all documents of a micro-batch.
class TakenUnderWay final : public FeaturesUnderWay {
 public:
  /// `rest` makes those of the other documents; null if there are none.
  TakenUnderWay(MicroBatch batch, Features taken, std::unique_ptr<FeaturesUnderWay> rest)
      : batch_(std::move(batch)), taken_(std::move(taken)), rest_(std::move(rest)) {}

  void wait_pass() override {
    if (rest_) rest_->wait_pass();
  }
  Result<std::optional<MadeFeatures>> finish() override {
    if (!rest_) {
      return std::optional(MadeFeatures{std::make_shared<const Features>(std::move(taken_)), 0});
    }
    PERCHERON_ASSIGN_OR_RETURN(const std::optional<MadeFeatures> rest, rest_->finish());
    if (!rest) return std::optional<MadeFeatures>();
    return std::optional(with(*rest));
  }
  Result<MadeFeatures> again(Context& context) override {
    PERCHERON_ASSIGN_OR_RETURN(const MadeFeatures rest, rest_->again(context));
    return with(rest);
  }

 private:
  MadeFeatures with(const MadeFeatures& rest) const {
    return {std::make_shared<const Features>(merge_documents(batch_, taken_, *rest.features)),
            rest.computed_tokens};
  }

  const MicroBatch batch_;
  Features taken_;
  const std::unique_ptr<FeaturesUnderWay> rest_;
};

}  // namespace

OfflineFeatureMaker::OfflineFeatureMaker(OfflineFeatures& offline, Target& target,
                                         std::unique_ptr<FeatureMaker> next)
    : offline_(offline), target_(target), next_(std::move(next)) {}

Result<std::unique_ptr<FeaturesUnderWay>> OfflineFeatureMaker::begin(Context& context,
                                                                     MicroBatch batch) {
  // Held-out samples are numbered apart from those in the files.
  if (batch.id.epoch == kHeldOutEpoch) return next_->begin(context, std::move(batch));
  PERCHERON_ASSIGN_OR_RETURN(TakenFeatures taken, offline_.take(batch));
  if (static_cast<int64_t>(taken.missing.size()) == batch.documents()) {
    return next_->begin(context, std::move(batch));
  }
  if (!taken.without_top1.empty()) {
    PERCHERON_RETURN_IF_ERROR(choose_top1(context, target_, taken.without_top1, taken.features));
  }
  std::unique_ptr<FeaturesUnderWay> rest;
  if (!taken.missing.empty()) {
    PERCHERON_ASSIGN_OR_RETURN(rest, next_->begin(context, select_documents(batch, taken.missing)));
  }
  return std::unique_ptr<FeaturesUnderWay>(std::make_unique<TakenUnderWay>(
      std::move(batch), std::move(taken.features), std::move(rest)));
}

}  // namespace percheron
