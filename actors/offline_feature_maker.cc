#include "actors/offline_feature_maker.h"

#include <utility>

#include "actors/batch_source.h"

namespace percheron {

OfflineFeatureMaker::OfflineFeatureMaker(OfflineFeatures& offline, Target& target,
                                         std::unique_ptr<FeatureMaker> next)
    : offline_(offline), target_(target), next_(std::move(next)) {}

Result<MadeFeatures> OfflineFeatureMaker::make(Context& context, MicroBatch batch) {
  // Held-out samples are numbered apart from those in the files.
  if (batch.id.epoch == kHeldOutEpoch) return next_->make(context, std::move(batch));
  PERCHERON_ASSIGN_OR_RETURN(TakenFeatures taken, offline_.take(batch));
  if (static_cast<int64_t>(taken.missing.size()) == batch.documents()) {
    return next_->make(context, std::move(batch));
  }
  if (!taken.without_top1.empty()) {
    PERCHERON_RETURN_IF_ERROR(choose_top1(context, target_, taken.without_top1, taken.features));
  }
  if (taken.missing.empty()) {
    return MadeFeatures{std::make_shared<const Features>(std::move(taken.features)), 0};
  }
  PERCHERON_ASSIGN_OR_RETURN(const MadeFeatures rest,
                             next_->make(context, select_documents(batch, taken.missing)));
  return MadeFeatures{
      std::make_shared<const Features>(merge_documents(batch, taken.features, *rest.features)),
      rest.computed_tokens};
}

}  // namespace percheron
