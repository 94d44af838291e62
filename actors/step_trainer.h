#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/gradient_buckets.h"
#include "actors/run_setup.h"
#include "base/status.h"
#include "data/features.h"
#include "kernels/device.h"
#include "kernels/device_collective.h"
#include "model/acceptance.h"
#include "model/drafter.h"
#include "model/drafter_files.h"
#include "model/optimizer.h"
#include "model/speculative.h"
#include "model/state_upload.h"

namespace percheron {

/// A drafter and its optimizer at a step boundary, in host memory.
struct TrainerSnapshot {
  int64_t step = 0;
  std::vector<HostTensor> drafter;                        // bf16, as servers read it
  std::map<std::string, OptimizerState::Moment> masters;  // f32, by parameter name
  OptimizerState optimizer;
};

/// What was applied to the parameters in one step.
struct AppliedStep {
  double gradient_norm = 0;
  double rate_factor = 0;
  bool skipped = false;  // nothing was supervised in the whole step
};

/// One trainer's part of a step; what a trainer actor runs on its device's worker, each call in a
/// job of its own. Sums of several micro-batches collect here until the step is reduced.
class StepTrainer {
 public:
  virtual ~StepTrainer() = default;

  /// Adds the micro-batch's gradients and sums to the step's.
  virtual Result<StepSums> add(Context& context, const Features& features) = 0;
  /// Whether prepare() is of use: copies to the device go on beside its work.
  virtual bool prepares() const { return false; }
  /// Begins to copy the states of the micro-batch after the one that is being added to the device,
  /// where add() finds them. On a thread of its own, that it may hold up, one call at a time. An
  /// error is one of the device.
  virtual Status prepare(const FeaturesPtr&) { return ok_status(); }
  /// Copies the step's gradients to `gradients`, one after the other, and returns the step's sums.
  virtual Result<StepSums> collect(Context& context, std::vector<float>& gradients) = 0;
  /// Instead of collect(), where gradients are summed between devices: puts the sums over all
  /// trainers, bucket by bucket, into `stream`, each as soon as the bucket is complete, while add()
  /// may still run. They go to device memory of their own, which apply_reduced() reads once the
  /// collective has waited for the stream. On a thread of its own. kUnavailable when `attempt` is
  /// given up (GradientBuckets).
  virtual Status reduce(Stream& stream, DeviceCollective& collective, int64_t attempt) = 0;
  /// The step's own sums, when no add() runs.
  virtual const StepSums& sums() const = 0;
  /// Forgets the step's gradients and sums.
  virtual void discard(Context& context) = 0;
  /// Updates the parameters with the sums over all trainers: `gradients` as collect() laid them out
  /// (null: this trainer's own), divided by total.weight. kDataLoss if loss or gradient is not
  /// finite: parameters are unchanged then. Starts the next step.
  virtual Result<AppliedStep> apply(Context& context, const std::vector<float>* gradients,
                                    const StepSums& total, int64_t step) = 0;
  /// The same with the sums of reduce(), whatever was discarded since.
  virtual Result<AppliedStep> apply_reduced(Context& context, const StepSums& total,
                                            int64_t step) = 0;
  /// Goes on from a snapshot's masters and moments; what was summed is forgotten.
  virtual Status restore(Context& context, const std::map<std::string, ConstTensorView>& masters,
                         const OptimizerState& optimizer) = 0;
  /// CRC-32C of all parameters.
  virtual Result<uint32_t> checksum(Context& context) = 0;
  virtual Result<TrainerSnapshot> snapshot(Context& context, int64_t step) = 0;
  /// The walk over the stored answers of one held-out micro-batch, for the run's draft lengths.
  virtual Result<WalkCounts> evaluate(Context& context, const Features& features) = 0;
};

/// The real thing: a drafter with its optimizer on one device.
class DrafterTrainer final : public StepTrainer {
 public:
  /// `target` is borrowed and lives as long. Initial weights: drafter.init_from, or random by
  /// drafter.seed with drafter.warm_start from the target.
  static Result<std::unique_ptr<DrafterTrainer>> make(Context& context, FileSystem& files,
                                                      std::shared_ptr<const RunSetup> setup,
                                                      const Target& target);

  Result<StepSums> add(Context& context, const Features& features) override;
  bool prepares() const override { return upload_ != nullptr; }
  Status prepare(const FeaturesPtr& features) override;
  Result<StepSums> collect(Context& context, std::vector<float>& gradients) override;
  Status reduce(Stream& stream, DeviceCollective& collective, int64_t attempt) override;
  const StepSums& sums() const override { return sums_; }
  void discard(Context& context) override;
  Result<AppliedStep> apply(Context& context, const std::vector<float>* gradients,
                            const StepSums& total, int64_t step) override;
  Result<AppliedStep> apply_reduced(Context& context, const StepSums& total, int64_t step) override;
  Status restore(Context& context, const std::map<std::string, ConstTensorView>& masters,
                 const OptimizerState& optimizer) override;
  Result<uint32_t> checksum(Context& context) override;
  Result<TrainerSnapshot> snapshot(Context& context, int64_t step) override;
  Result<WalkCounts> evaluate(Context& context, const Features& features) override;

  Drafter& drafter() { return *drafter_; }
  /// Before the first add(): gradients are to be summed between devices, in buckets of about so
  /// many bytes. Takes memory for the sums.
  Status sum_between_devices(Context& context, uint64_t bucket_bytes);
  /// Null without sum_between_devices().
  GradientBuckets* buckets() { return buckets_.get(); }
  /// What prepare() fills; null where it is of no use.
  const StateUpload* upload() const { return upload_.get(); }

 private:
  DrafterTrainer(std::shared_ptr<const RunSetup> setup, TargetParts parts);
  Status scatter(Context& context, const std::vector<float>& gradients);

  std::shared_ptr<const RunSetup> setup_;
  TargetParts parts_;
  std::unique_ptr<StateUpload> upload_;
  std::unique_ptr<Drafter> drafter_;
  std::unique_ptr<Optimizer> optimizer_;
  StepSums sums_;
  std::unique_ptr<GradientBuckets> buckets_;  // null where gradients go through host memory
};

}  // namespace percheron
