#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/step_trainer.h"

namespace percheron {

/// Does what another does.
class ForwardingTrainer : public StepTrainer {
 public:
  explicit ForwardingTrainer(std::unique_ptr<StepTrainer> inner) : inner_(std::move(inner)) {}
  Result<StepSums> add(Context& context, const Features& features) override {
    return inner_->add(context, features);
  }
  bool prepares() const override { return inner_->prepares(); }
  Status prepare(const FeaturesPtr& features) override { return inner_->prepare(features); }
  Result<StepSums> collect(Context& context, std::vector<float>& gradients) override {
    return inner_->collect(context, gradients);
  }
  Status reduce(Stream& stream, DeviceCollective& collective, int64_t attempt) override {
    return inner_->reduce(stream, collective, attempt);
  }
  const StepSums& sums() const override { return inner_->sums(); }
  void discard(Context& context) override { inner_->discard(context); }
  Result<AppliedStep> apply(Context& context, const std::vector<float>* gradients,
                            const StepSums& total, int64_t step) override {
    return inner_->apply(context, gradients, total, step);
  }
  Result<AppliedStep> apply_reduced(Context& context, const StepSums& total,
                                    int64_t step) override {
    return inner_->apply_reduced(context, total, step);
  }
  Status restore(Context& context, const std::map<std::string, ConstTensorView>& masters,
                 const OptimizerState& optimizer) override {
    return inner_->restore(context, masters, optimizer);
  }
  Result<uint32_t> checksum(Context& context) override { return inner_->checksum(context); }
  Result<TrainerSnapshot> snapshot(Context& context, int64_t step) override {
    return inner_->snapshot(context, step);
  }
  Result<WalkCounts> evaluate(Context& context, const Features& features) override {
    return inner_->evaluate(context, features);
  }

 private:
  const std::unique_ptr<StepTrainer> inner_;
};

}  // namespace percheron
