#pragma once

#include <memory>

#include "actors/feature_maker.h"
#include "base/status.h"
#include "data/offline_features.h"
#include "kernels/device.h"
#include "model/target.h"

namespace percheron {

/// Takes features of training samples from files and asks the next maker for the rest and for
/// held-out samples: the first link of the chain files, cache, target.
class OfflineFeatureMaker final : public FeatureMaker {
 public:
  /// `offline` and `target` are borrowed; `target` lives on the device whose worker calls begin(),
  /// and chooses the top-1 ids that files lack.
  OfflineFeatureMaker(OfflineFeatures& offline, Target& target, std::unique_ptr<FeatureMaker> next);

  /// Errors as OfflineFeatures::take() and those of the next maker.
  Result<std::unique_ptr<FeaturesUnderWay>> begin(Context& context, MicroBatch batch) override;

 private:
  OfflineFeatures& offline_;
  Target& target_;
  const std::unique_ptr<FeatureMaker> next_;
};

}  // namespace percheron
